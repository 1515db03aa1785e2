//! What commands count, as rows that are written as text and as JSON alike.

use serde_json::{Value, json};
use terrace_tiers::object::Stamp;
use terrace_tiers::object::admin::{Checked, Collected, NamespaceStat, Rebuilt};

use crate::config_cmd::human_bytes;

/// One row: its name, which is the key in JSON, and its value.
pub type Row = (&'static str, Figure);

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// A number of things.
    Count(u64),
    /// A number of things, or the number of one, that may not be there.
    Perhaps(Option<u64>),
    /// Bytes.
    Bytes(u64),
    /// Milliseconds since something.
    Age(Option<u64>),
    /// A time: in JSON milliseconds since 1970-01-01 UTC.
    Time(Option<Stamp>),
}

impl Figure {
    /// For programs: numbers, and null for what is not there.
    pub fn to_json(self) -> Value {
        match self {
            Self::Count(number) | Self::Bytes(number) => json!(number),
            Self::Perhaps(number) | Self::Age(number) => json!(number),
            Self::Time(stamp) => json!(stamp.map(|stamp| stamp.0)),
        }
    }

    /// For people.
    pub fn to_text(self) -> String {
        match self {
            Self::Count(number) | Self::Perhaps(Some(number)) => number.to_string(),
            Self::Bytes(bytes) => human_bytes(bytes),
            Self::Age(Some(millis)) => age(millis),
            Self::Time(Some(stamp)) => date(stamp),
            Self::Perhaps(None) | Self::Age(None) | Self::Time(None) => "-".to_owned(),
        }
    }
}

/// Rows of `stat`.
pub fn stat(stat: &NamespaceStat) -> Vec<Row> {
    vec![
        ("segments", Figure::Count(stat.segments)),
        ("blocks", Figure::Count(stat.blocks)),
        ("bytes", Figure::Bytes(stat.bytes)),
        ("newest", Figure::Time(stat.newest)),
        ("oldest_used", Figure::Time(stat.oldest_used)),
        ("removed", Figure::Count(stat.removed)),
        ("writers", Figure::Count(stat.writers)),
        ("logs", Figure::Count(stat.logs)),
        ("log_bytes", Figure::Bytes(stat.log_bytes)),
        ("snapshot", Figure::Perhaps(stat.snapshot)),
        ("snapshot_age_ms", Figure::Age(stat.snapshot_age_ms)),
        ("parts", Figure::Count(stat.parts)),
        ("lease_term", Figure::Perhaps(stat.lease_term)),
    ]
}

/// Rows of `gc`.
pub fn collected(collected: &Collected) -> Vec<Row> {
    vec![
        ("evicted", Figure::Count(collected.evicted)),
        ("evicted_bytes", Figure::Bytes(collected.evicted_bytes)),
        ("aged", Figure::Count(collected.aged)),
        ("aged_bytes", Figure::Bytes(collected.aged_bytes)),
        ("lost", Figure::Count(collected.lost)),
        ("deleted_segments", Figure::Count(collected.deleted_segments)),
        ("orphans", Figure::Count(collected.orphans)),
        ("orphan_bytes", Figure::Bytes(collected.orphan_bytes)),
        ("deleted_logs", Figure::Count(collected.deleted_logs)),
        ("deleted_parts", Figure::Count(collected.deleted_parts)),
        ("deleted_others", Figure::Count(collected.deleted_others)),
        ("snapshot", Figure::Perhaps(collected.snapshot)),
        ("failures", Figure::Count(collected.failures)),
    ]
}

/// Rows of `fsck`, without the problems.
pub fn checked(checked: &Checked) -> Vec<Row> {
    vec![
        ("segments", Figure::Count(checked.segments)),
        ("blocks", Figure::Count(checked.blocks)),
        ("bytes", Figure::Bytes(checked.bytes)),
        ("logs", Figure::Count(checked.logs)),
        ("parts", Figure::Count(checked.parts)),
        ("orphans", Figure::Count(checked.orphans)),
        ("orphan_bytes", Figure::Bytes(checked.orphan_bytes)),
    ]
}

/// Rows of `rebuild-index`, without what could not be read.
pub fn rebuilt(rebuilt: &Rebuilt) -> Vec<Row> {
    vec![
        ("segments_read", Figure::Count(rebuilt.segments_read)),
        ("segments_added", Figure::Count(rebuilt.segments_added)),
        ("blocks_added", Figure::Count(rebuilt.blocks_added)),
        ("bytes_added", Figure::Bytes(rebuilt.bytes_added)),
    ]
}

/// A duration in its largest unit, `3.5 h`.
fn age(millis: u64) -> String {
    let secs = millis as f64 / 1000.0;
    let units = [("d", 86_400.0), ("h", 3600.0), ("min", 60.0)];
    let (unit, size) = units.into_iter().find(|(_, size)| secs >= *size).unwrap_or(("s", 1.0));
    format!("{:.1} {unit}", secs / size)
}

/// A time in UTC, `2026-11-21 22:07:09`.
pub fn date(stamp: Stamp) -> String {
    let secs = stamp.0 / 1000;
    let (days, secs) = (secs / 86_400, secs % 86_400);
    // Days to a date in years that start in March, eras of 400 years (Hinnant, chrono-compatible low-level date algorithms).
    let days = days.saturating_add(719_468);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02}", secs / 3600, secs / 60 % 60, secs % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (secs, want) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_200, "2024-03-01 00:00:00"),
            (4_102_444_799, "2099-12-31 23:59:59"),
        ] {
            assert_eq!(date(Stamp(secs * 1000)), want);
        }
        // Far beyond any clock, as a damaged stamp may be: no panic.
        assert!(date(Stamp(u64::MAX)).ends_with(|c: char| c.is_ascii_digit()));
    }

    #[test]
    fn figures_for_people_and_programs() {
        for (figure, text, value) in [
            (Figure::Count(3), "3", json!(3)),
            (Figure::Perhaps(None), "-", json!(null)),
            (Figure::Bytes(3 << 20), "3.0 MiB", json!(3 << 20)),
            (Figure::Age(Some(5_400_000)), "1.5 h", json!(5_400_000)),
            (Figure::Age(Some(1500)), "1.5 s", json!(1500)),
            (Figure::Time(Some(Stamp(1000))), "1970-01-01 00:00:01", json!(1000)),
        ] {
            assert_eq!((figure.to_text().as_str(), figure.to_json()), (text, value));
        }
    }
}

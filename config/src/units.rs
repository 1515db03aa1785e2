//! Sizes and durations as people write them: a whole number and its unit.

use std::time::Duration;

/// Units of sizes, largest first. Binary only: a decimal unit next to them is where "64GB" goes wrong.
const SIZE_UNITS: [(&str, u64); 6] =
    [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Decimal units that people write where they mean binary ones.
const DECIMAL_UNITS: [(&str, &str, u64); 5] = [
    ("k", "KiB", 1_000),
    ("m", "MiB", 1_000_000),
    ("g", "GiB", 1_000_000_000),
    ("t", "TiB", 1_000_000_000_000),
    ("p", "PiB", 1_000_000_000_000_000),
];

/// Units of durations in nanoseconds, largest first.
const TIME_UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Bytes of a size such as `64GiB`. The error says what to write instead.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    if let Some(&(_, factor)) = SIZE_UNITS.iter().find(|(name, _)| *name == unit) {
        return scaled(number, factor, "B", format_size);
    }
    if number.is_empty() {
        return Err("write a whole number and its unit, such as \"64GiB\"".to_owned());
    }
    if unit.is_empty() {
        return Err(format!("write the unit (\"{number}GiB\"), or the bytes as a number without quotes"));
    }
    let lower = unit.to_ascii_lowercase();
    for (letter, binary, decimal) in DECIMAL_UNITS {
        if lower == format!("{letter}ib") {
            return Err(format!("write \"{number}{binary}\""));
        }
        if lower == letter || lower == format!("{letter}b") {
            let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(decimal));
            let other = bytes.map_or_else(String::new, |bytes| format!(", or {bytes} (bytes) for the decimal unit"));
            return Err(format!("\"{unit}\" is ambiguous: write \"{number}{binary}\"{other}"));
        }
    }
    Err("write one of the units B, KiB, MiB, GiB, TiB, PiB".to_owned())
}

/// The duration of a text such as `10ms`. The error says what to write instead.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    if let Some(&(_, factor)) = TIME_UNITS.iter().find(|(name, _)| *name == unit) {
        return scaled(number, factor, "ns", |nanos| format_duration(Duration::from_nanos(nanos)))
            .map(Duration::from_nanos);
    }
    if number.is_empty() {
        return Err("write a whole number and its unit, such as \"10ms\" or \"5s\"".to_owned());
    }
    if unit.is_empty() {
        return Err(format!("write the unit: \"{number}s\" or \"{number}ms\""));
    }
    Err("write one of the units ns, us, ms, s, m, h, d".to_owned())
}

/// `bytes` in the largest unit that divides it: [`parse_size`] gives the same number back.
pub(crate) fn format_size(bytes: u64) -> String {
    format_unit(bytes, &SIZE_UNITS, "B")
}

/// `duration` in the largest unit that divides it: [`parse_duration`] gives the same duration back, up to 584 years.
pub(crate) fn format_duration(duration: Duration) -> String {
    format_unit(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), &TIME_UNITS, "s")
}

fn format_unit(value: u64, units: &[(&str, u64)], of_zero: &str) -> String {
    for (name, factor) in units {
        if value != 0 && value.is_multiple_of(*factor) {
            return format!("{}{name}", value / factor);
        }
    }
    format!("0{of_zero}")
}

/// Number and unit; one space may stand between them.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    (number, rest.strip_prefix(' ').unwrap_or(rest))
}

/// `number` times `factor`, for whole numbers only.
fn scaled(number: &str, factor: u64, smallest: &str, format: impl Fn(u64) -> String) -> Result<u64, String> {
    if number.is_empty() {
        return Err("write a whole number in front of the unit".to_owned());
    }
    if number.contains('.') {
        // A float that happens to be a whole number of the smallest unit can be named as the fix, never taken.
        let exact = number.parse::<f64>().map(|n| n * factor as f64).unwrap_or(f64::NAN);
        let whole = exact.fract() == 0.0 && exact < 9.0e15;
        let fix = if whole { format(exact as u64) } else { format!("..{smallest}") };
        return Err(format!("write a whole number of a smaller unit: \"{fix}\""));
    }
    let product = number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
    product.ok_or_else(|| "write a smaller value".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0B", 0), ("1B", 1), ("4KiB", 4096), ("64GiB", 64 << 30), ("2 TiB", 2 << 40), ("007MiB", 7 << 20)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for (text, fix) in [
            ("64GB", "\"GB\" is ambiguous: write \"64GiB\", or 64000000000 (bytes) for the decimal unit"),
            ("64g", "\"g\" is ambiguous: write \"64GiB\", or 64000000000 (bytes) for the decimal unit"),
            ("64gib", "write \"64GiB\""),
            ("1.5TiB", "write a whole number of a smaller unit: \"1536GiB\""),
            ("0.3KiB", "write a whole number of a smaller unit: \"..B\""),
            ("64", "write the unit (\"64GiB\"), or the bytes as a number without quotes"),
            ("", "write a whole number and its unit, such as \"64GiB\""),
            ("GiB", "write a whole number in front of the unit"),
            ("-1GiB", "write a whole number and its unit, such as \"64GiB\""),
            ("99999999999999999999B", "write a smaller value"),
            ("999999PiB", "write a smaller value"),
            ("3 apples", "write one of the units B, KiB, MiB, GiB, TiB, PiB"),
        ] {
            assert_eq!(parse_size(text), Err(fix.to_owned()), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, millis) in [
            ("10ms", 10),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("30d", 2_592_000_000),
            ("3000us", 3),
            ("5 s", 5_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (text, fix) in [
            ("1.5s", "write a whole number of a smaller unit: \"1500ms\""),
            ("5", "write the unit: \"5s\" or \"5ms\""),
            ("5sec", "write one of the units ns, us, ms, s, m, h, d"),
            ("soon", "write a whole number and its unit, such as \"10ms\" or \"5s\""),
        ] {
            assert_eq!(parse_duration(text), Err(fix.to_owned()), "{text}");
        }
    }

    #[test]
    fn formats_parse_back() {
        for bytes in [0, 1, 1023, 1024, 1025, 3 << 30, u64::MAX] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
            let duration = Duration::from_nanos(bytes);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}

//! Tables of metrics: what each is called, what it means, where its value is kept.

use metrics::Unit;

/// What a metric counts or measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// What is now.
    Gauge,
    /// How durations are spread.
    Histogram,
}

/// A metric, as the list of all of them names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Metric {
    /// Its name, unit last.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: Vec<&'static str>,
    /// What it means, in a sentence.
    pub help: &'static str,
}

impl Metric {
    /// A histogram of durations.
    pub fn histogram(name: &'static str, labels: &[&'static str], help: &'static str) -> Self {
        Self { name, kind: MetricKind::Histogram, labels: labels.to_vec(), help }
    }

    /// The unit, by the end of the name.
    pub fn unit(&self) -> Unit {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        if name.ends_with("_seconds") {
            Unit::Seconds
        } else if name.ends_with("_bytes") {
            Unit::Bytes
        } else {
            Unit::Count
        }
    }

    /// Tells the recorder in force of the metric.
    pub fn describe(&self) {
        let (name, unit, help) = (self.name.into(), Some(self.unit()), self.help.into());
        metrics::with_recorder(|recorder| match self.kind {
            MetricKind::Counter => recorder.describe_counter(name, unit, help),
            MetricKind::Gauge => recorder.describe_gauge(name, unit, help),
            MetricKind::Histogram => recorder.describe_histogram(name, unit, help),
        });
    }
}

/// Where a value is kept.
pub type Value<S> = fn(&S) -> u64;

/// Counters, or gauges, of one name.
pub struct Family<S: 'static> {
    /// The name; it ends with `_total` exactly if the values are counters.
    pub name: &'static str,
    /// What it means, in a sentence.
    pub help: &'static str,
    pub(super) values: Values<S>,
}

pub(super) enum Values<S: 'static> {
    One(Value<S>),
    /// One for each value of this label.
    By(&'static str, &'static [(&'static str, Value<S>)]),
}

impl<S> Family<S> {
    /// A single value.
    pub const fn one(name: &'static str, help: &'static str, value: Value<S>) -> Self {
        Self { name, help, values: Values::One(value) }
    }

    /// One value for each value of the label `label`.
    pub const fn by(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: &'static [(&'static str, Value<S>)],
    ) -> Self {
        Self { name, help, values: Values::By(label, values) }
    }

    pub(super) fn kind(&self) -> MetricKind {
        if self.name.ends_with("_total") { MetricKind::Counter } else { MetricKind::Gauge }
    }

    /// Its values, each with the label that tells it from the others.
    pub(super) fn each(&self, stats: &S, mut value: impl FnMut(Option<(&'static str, &'static str)>, u64)) {
        match self.values {
            Values::One(of) => value(None, of(stats)),
            Values::By(label, values) => values.iter().for_each(|(name, of)| value(Some((label, name)), of(stats))),
        }
    }
}

/// All that is published of one kind of statistics.
pub struct Table<S: 'static> {
    /// Labels that all of it has, beside those of the families.
    pub labels: &'static [&'static str],
    /// The metrics.
    pub families: &'static [Family<S>],
}

impl<S> Table<S> {
    /// The metrics of the table.
    pub fn metrics(&self) -> Vec<Metric> {
        let metric = |family: &Family<S>| {
            let mut labels = self.labels.to_vec();
            if let Values::By(label, _) = family.values {
                labels.push(label);
            }
            Metric { name: family.name, kind: family.kind(), labels, help: family.help }
        };
        self.families.iter().map(metric).collect()
    }

    /// Appends names, with `labels` and their own in braces, and values.
    pub fn flatten(&self, labels: &[(&str, &str)], stats: &S, out: &mut Vec<(String, f64)>) {
        let mut shared = String::new();
        labels.iter().for_each(|label| push_label(&mut shared, *label));
        for family in self.families {
            family.each(stats, |own, value| {
                let mut name = String::with_capacity(family.name.len() + shared.len() + OWN_LABEL_BYTES);
                name.push_str(family.name);
                if !shared.is_empty() || own.is_some() {
                    name.push('{');
                    name.push_str(&shared);
                    own.into_iter().for_each(|label| push_label(&mut name, label));
                    // In the place of the last comma.
                    name.pop();
                    name.push('}');
                }
                out.push((name, value as f64));
            });
        }
    }
}

/// A label of a family and its braces, mostly.
const OWN_LABEL_BYTES: usize = 32;

/// As Prometheus writes a label, and a comma.
fn push_label(text: &mut String, (name, value): (&str, &str)) {
    text.push_str(name);
    text.push_str("=\"");
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            letter => text.push(letter),
        }
    }
    text.push_str("\",");
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two {
        counted: u64,
        now: u64,
    }

    static TWO: Table<Two> = Table {
        labels: &["pool"],
        families: &[
            Family::one("terrace_a_total", "a.", |two| two.counted),
            Family::by("terrace_b_bytes", "b.", "state", &[("x", |two| two.now), ("y\n", |_| 7)]),
        ],
    };

    #[test]
    fn names_say_type_and_unit() {
        let metrics = TWO.metrics();
        assert_eq!(
            metrics.iter().map(|metric| metric.kind).collect::<Vec<_>>(),
            [MetricKind::Counter, MetricKind::Gauge]
        );
        assert_eq!(metrics.iter().map(Metric::unit).collect::<Vec<_>>(), [Unit::Count, Unit::Bytes]);
        assert_eq!(metrics[1].labels, ["pool", "state"]);
        assert_eq!(Metric::histogram("terrace_c_seconds", &[], "c.").unit(), Unit::Seconds);
    }

    #[test]
    fn flat_names_carry_their_labels_escaped() {
        let mut flat = Vec::new();
        TWO.flatten(&[("tier", "a\"\\")], &Two { counted: 1, now: 2 }, &mut flat);
        let names: Vec<_> = flat.iter().map(|(name, _)| name.as_str()).collect();
        let tier = r#"tier="a\"\\""#;
        let want = [
            format!("terrace_a_total{{{tier}}}"),
            format!("terrace_b_bytes{{{tier},state=\"x\"}}"),
            format!("terrace_b_bytes{{{tier},state=\"y\\n\"}}"),
        ];
        assert_eq!(names, want);
        assert_eq!(flat.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [1.0, 2.0, 7.0]);
        let mut bare = Vec::new();
        TWO.flatten(&[], &Two { counted: 1, now: 2 }, &mut bare);
        let names: Vec<_> = bare.iter().map(|(name, _)| name.as_str()).collect();
        let want = ["terrace_a_total", "terrace_b_bytes{state=\"x\"}", "terrace_b_bytes{state=\"y\\n\"}"];
        assert_eq!(names, want);
    }
}

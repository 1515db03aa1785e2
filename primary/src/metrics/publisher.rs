//! From a table to the recorder in force.

use metrics::{Key, Label, Level, Metadata};

use super::table::{Family, MetricKind, Table, Values};

/// Publishes statistics of one kind and one source (a pool, one of its tiers), and takes its gauges back to 0 when it goes.
///
/// Counters grow by what was counted since the last time, so a source that comes back under the same labels goes on where the earlier one
/// ended. Meant to be called about once a second: it builds each key anew.
pub struct Publisher<S: 'static> {
    table: &'static Table<S>,
    labels: Vec<Label>,
    /// Each counter when it was last published, in the order of the table.
    counted: Vec<u64>,
    published: bool,
}

impl<S> Publisher<S> {
    /// A publisher with these labels; nothing is published yet.
    pub fn new(table: &'static Table<S>, labels: &[(&'static str, &str)]) -> Self {
        let labels = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
        Self { table, labels, counted: Vec::new(), published: false }
    }

    /// Tells the recorder in force what `stats` holds now.
    pub fn publish(&mut self, stats: &S) {
        self.published = true;
        let Self { table, labels, counted, .. } = self;
        let mut at = 0;
        for family in table.families {
            let kind = family.kind();
            family.each(stats, |own, value| {
                let key = Self::key(family, labels, own);
                if kind == MetricKind::Gauge {
                    return set_gauge(&key, value as f64);
                }
                let before = counted.get(at).copied().unwrap_or(0);
                metrics::with_recorder(|recorder| recorder.register_counter(&key, &METADATA))
                    .increment(value.saturating_sub(before));
                match counted.get_mut(at) {
                    Some(counted) => *counted = value,
                    None => counted.push(value),
                }
                at += 1;
            });
        }
    }

    fn key(family: &Family<S>, labels: &[Label], own: Option<(&'static str, &'static str)>) -> Key {
        let own = own.map(|(name, value)| Label::from_static_parts(name, value));
        Key::from_parts(family.name, labels.iter().cloned().chain(own).collect::<Vec<_>>())
    }
}

impl<S> Drop for Publisher<S> {
    fn drop(&mut self) {
        if !self.published {
            return;
        }
        for family in self.table.families.iter().filter(|family| family.kind() == MetricKind::Gauge) {
            match family.values {
                Values::One(_) => set_gauge(&Self::key(family, &self.labels, None), 0.0),
                Values::By(label, values) => values
                    .iter()
                    .for_each(|(value, _)| set_gauge(&Self::key(family, &self.labels, Some((label, value))), 0.0)),
            }
        }
    }
}

const METADATA: Metadata<'static> = Metadata::new("terrace", Level::INFO, None);

fn set_gauge(key: &Key, value: f64) {
    metrics::with_recorder(|recorder| recorder.register_gauge(key, &METADATA)).set(value);
}

/// A histogram with at most one label. It stays with the recorder that is in force now: one that is installed later hears
/// nothing of it.
pub fn histogram(name: &'static str, label: Option<(&'static str, &str)>) -> metrics::Histogram {
    let labels: Vec<_> = label.into_iter().map(|(name, value)| Label::new(name, value.to_owned())).collect();
    let key = Key::from_parts(name, labels);
    metrics::with_recorder(|recorder| recorder.register_histogram(&key, &METADATA))
}

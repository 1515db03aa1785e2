//! What a bench measured.

use serde::Serialize;

/// A bench and its figures.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    bench: &'static str,
    results: Vec<Figure>,
}

/// One figure and the limit that was measured beside it.
#[derive(Debug, Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    limit: f64,
    /// `value / limit`: 1.0 is at the limit. For times less is better, for rates more.
    ratio: f64,
    /// What the ratio should be.
    budget: &'static str,
}

impl Outcome {
    pub(super) fn new(bench: &'static str) -> Self {
        Self { bench, results: Vec::new() }
    }

    /// Adds a figure whose ratio is that of its value to its limit.
    pub(super) fn add(&mut self, name: String, value: f64, unit: &'static str, limit: f64, budget: &'static str) {
        let ratio = if limit > 0.0 { value / limit } else { 0.0 };
        self.add_with_ratio(name, value, unit, limit, ratio, budget);
    }

    /// Adds a figure whose ratio is a median of ratios, each taken pairwise.
    pub(super) fn add_with_ratio(
        &mut self,
        name: String,
        value: f64,
        unit: &'static str,
        limit: f64,
        ratio: f64,
        budget: &'static str,
    ) {
        self.results.push(Figure { name, value, unit, limit, ratio, budget });
    }

    pub(super) fn print_json(&self) -> anyhow::Result<()> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }

    pub(super) fn print_table(&self) {
        println!("{:<52} {:>10} {:>10}  {:<6} {:>6}  budget", self.bench, "value", "limit", "unit", "ratio");
        for figure in &self.results {
            let Figure { name, value, unit, limit, ratio, budget } = figure;
            println!("{name:<52} {value:>10.1} {limit:>10.1}  {unit:<6} {ratio:>6.2}  {budget}");
        }
    }
}

//! Removing a tenant: chosen, locked, removed, listed again.

use anyhow::{Context, Result, bail};
use terrace_tiers::nvme::admin::LockedDirectory;

use super::progress::Bar;
use super::report::{Amount, Line, Report};
use super::stores::{StoreKind, Stores};
use crate::failure::BadInput;

/// Fewest digits that name a namespace.
const LEAST_DIGITS: usize = 8;
/// A lease that was renewed within so many of its lengths is held.
const LEASES: u32 = 2;

/// Options of `erase`.
#[derive(Clone, Debug, clap::Args)]
pub struct Erase {
    /// The tenant: all its namespaces. Those without a label are nobody's: name them with --digest
    #[arg(value_name = "NAME", required_unless_present = "digest", conflicts_with = "digest")]
    name: Option<String>,
    /// One namespace: its digest in hexadecimal, or its first 8 digits or more
    #[arg(long, value_name = "HEX")]
    digest: Option<String>,
    /// Do it; without, only say what would be done
    #[arg(long)]
    yes: bool,
    /// Although a node renewed a lease in the bucket a moment ago
    #[arg(long)]
    in_use: bool,
}

impl Erase {
    /// Erases, and fills the report: before anything is removed, and again behind it.
    pub fn run(&self, stores: &Stores, report: &mut Report) -> Result<()> {
        let all = stores.list()?;
        let lines = self.chosen(&all)?;
        report.applied = Some(self.yes);
        report.lines = lines;
        if report.lines.is_empty() {
            eprintln!("terrace: there is nothing to erase");
            return Ok(());
        }
        if !self.yes {
            eprintln!("terrace: nothing was removed; with --yes it is");
            return Ok(());
        }
        // All or nothing: every directory is locked before the first file goes.
        let locked = lock(stores)?;
        if !self.in_use {
            refuse_leases(stores, &report.lines)?;
        }
        for directory in locked.iter().flatten() {
            // Copies of blocks stand there without a name, and names in the catalog.
            directory.forget_copies()?;
        }
        for line in &mut report.lines {
            line.after = Some(erase(stores, &locked, line)?);
        }
        Ok(())
    }

    fn chosen(&self, all: &[Line]) -> Result<Vec<Line>, BadInput> {
        if let Some(digits) = &self.digest {
            return by_digits(all, digits);
        }
        let name = self.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            return Err(BadInput::new("the tenant without a name is everybody's: erase its namespaces with --digest"));
        }
        let unknown = all.iter().filter(|line| line.fields.is_none()).count();
        if unknown > 0 {
            eprintln!(
                "terrace: {unknown} namespaces have no label: if they are this tenant's, erase them with --digest"
            );
        }
        let is_its = |line: &&Line| line.fields.as_ref().is_some_and(|fields| fields.tenant == name);
        Ok(all.iter().filter(is_its).cloned().collect())
    }
}

/// The lines of the only namespace whose digest starts so.
fn by_digits(all: &[Line], digits: &str) -> Result<Vec<Line>, BadInput> {
    let wanted = digits.to_ascii_lowercase();
    if wanted.len() < LEAST_DIGITS || !wanted.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(BadInput::new(format!("--digest {digits}: write {LEAST_DIGITS} hexadecimal digits or more")));
    }
    let lines: Vec<Line> = all.iter().filter(|line| line.digits().starts_with(&wanted)).cloned().collect();
    if lines.windows(2).any(|pair| pair[0].namespace != pair[1].namespace) {
        return Err(BadInput::new(format!("--digest {digits}: several namespaces start so; write more digits")));
    }
    Ok(lines)
}

/// Every directory of the configuration, one place a store. An error names the first that a tier has open.
fn lock(stores: &Stores) -> Result<Vec<Option<LockedDirectory>>> {
    let lock = |kind: &StoreKind| match kind {
        StoreKind::Directory(directory) => directory.clone().lock().map(Some),
        StoreKind::Bucket { .. } => Ok(None),
    };
    let locked: Result<Vec<_>, _> = stores.0.iter().map(|store| lock(&store.kind)).collect();
    locked.context("nothing was removed: stop the daemon that uses these tiers")
}

fn refuse_leases(stores: &Stores, lines: &[Line]) -> Result<()> {
    for line in lines {
        let Some(StoreKind::Bucket { admin, lease }) = stores.0.get(line.store).map(|store| &store.kind) else {
            continue;
        };
        if let Some(age) = admin.lease_age(&line.namespace)?
            && age < *lease * LEASES
        {
            bail!(
                "nothing was removed: a node renewed the lease of namespace {} {} s ago: stop the nodes that serve it, or wait {} s \
                 after the last; with --in-use it is removed all the same, and what nodes write meanwhile is told as left",
                line.digits(),
                age.as_secs(),
                (*lease * LEASES).as_secs()
            );
        }
    }
    Ok(())
}

/// Removes one namespace from one place, and says what is left.
fn erase(stores: &Stores, locked: &[Option<LockedDirectory>], line: &Line) -> Result<Amount> {
    let Some(store) = stores.0.get(line.store) else { return Ok(line.before) };
    let bar = Bar::new("removing", &store.place);
    match (&store.kind, locked.get(line.store)) {
        (StoreKind::Directory(_), Some(Some(directory))) => {
            directory.erase(&line.namespace, &mut |done| bar.tell(done))?;
        }
        (StoreKind::Bucket { admin, .. }, _) => {
            admin
                .erase(&line.namespace, &mut |progress| bar.tell(progress.done))
                .with_context(|| format!("{} could not be erased", store.place))?;
        }
        (StoreKind::Directory(_), _) => {}
    }
    drop(bar);
    store.count(&line.namespace)
}

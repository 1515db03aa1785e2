//! The places of a configuration that keep blocks, and the namespaces in them.

use std::path::Path;

use anyhow::{Context, Result};
use terrace_config::{Config, TierKind};
use terrace_tiers::nvme::admin::BlockDirectory;
use terrace_tiers::object::admin::Admin;

use super::progress::Bar;
use super::report::{Amount, Line};

/// One place.
pub struct Store {
    /// The tier's name.
    pub tier: String,
    /// Path or URL.
    pub place: String,
    pub kind: StoreKind,
}

/// What is there.
pub enum StoreKind {
    Directory(BlockDirectory),
    Bucket { admin: Box<Admin>, lease: std::time::Duration },
}

/// All places, in the order of the configuration. Memory tiers keep nothing.
pub struct Stores(pub Vec<Store>);

impl Stores {
    /// Finds the directories, and prepares for the buckets.
    pub fn open(config: &Config) -> Result<Self> {
        let mut stores = Vec::new();
        for tier in &config.tiers {
            match &tier.kind {
                TierKind::Memory(_) => {}
                TierKind::Nvme(nvme) => {
                    for directory in nvme.paths.iter().map(|path| BlockDirectory::find(path)) {
                        stores.extend(directory?.into_iter().map(|directory| Store {
                            tier: tier.name.clone(),
                            place: text(directory.root()),
                            kind: StoreKind::Directory(directory),
                        }));
                    }
                }
                TierKind::Object(object) => stores.push(Store {
                    tier: tier.name.clone(),
                    place: object.url.clone(),
                    kind: StoreKind::Bucket { admin: Box::new(Admin::open(&tier.name, object)?), lease: object.lease },
                }),
            }
        }
        Ok(Self(stores))
    }

    /// Every namespace of every place, counted. Waits for directories and buckets.
    pub fn list(&self) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        for (store, at) in self.0.iter().zip(0..) {
            for namespace in store.namespaces()? {
                let label = store.label(&namespace)?;
                let fields = label.map(|(namespace, _)| namespace);
                let mut line = Line::new(at, (&store.tier, &store.place), namespace, fields);
                line.before = store.count(&namespace)?;
                lines.push(line);
            }
        }
        Ok(lines)
    }
}

impl Store {
    fn namespaces(&self) -> Result<Vec<[u8; 32]>> {
        match &self.kind {
            StoreKind::Directory(directory) => Ok(directory.namespaces()?),
            StoreKind::Bucket { admin, .. } => {
                admin.namespaces().with_context(|| format!("the namespaces of {} cannot be listed", self.place))
            }
        }
    }

    fn label(&self, namespace: &[u8; 32]) -> Result<Option<(terrace_config::Namespace, terrace_config::Geometry)>> {
        match &self.kind {
            StoreKind::Directory(directory) => Ok(directory.label(namespace)),
            StoreKind::Bucket { admin, .. } => {
                admin.label(namespace).with_context(|| format!("a label in {} cannot be read", self.place))
            }
        }
    }

    /// What there is of a namespace now.
    pub fn count(&self, namespace: &[u8; 32]) -> Result<Amount> {
        let bar = Bar::new("counting", &self.place);
        match &self.kind {
            StoreKind::Directory(directory) => {
                let contents = directory.contents(namespace, &mut |done| bar.tell(done))?;
                Ok(Amount { files: contents.files, bytes: contents.bytes })
            }
            StoreKind::Bucket { admin, .. } => {
                let contents = admin.contents(namespace, &mut |progress| bar.tell(progress.done));
                let contents = contents.with_context(|| format!("the objects of {} cannot be listed", self.place))?;
                Ok(Amount { files: contents.objects, bytes: contents.bytes })
            }
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

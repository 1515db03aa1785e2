//! What a client is told.

use std::path::PathBuf;
use std::time::Duration;

use terrace_config::{Geometry, Namespace};

use crate::protocol::{Hello, SHARED_TABLE, VERSION, WireGeometry, WireNamespace};

/// What a session is opened with, and how long its calls may take.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Start of the engine's name, for people; the session adds what makes it unique.
    pub engine: String,
    /// Name and version of the client, for the daemon's log.
    pub client: String,
    /// What makes bytes interchangeable.
    pub namespace: Namespace,
    /// Shape of a block.
    pub geometry: Geometry,
    /// The longest that a call may wait for its reply.
    pub call_budget: Duration,
    /// How long after a reply is overdue lookups are answered "not yet" before they are misses.
    pub stall_patience: Duration,
    /// Whether the daemon is to tell what becomes readable and unreadable where.
    pub events: bool,
}

impl ClientOptions {
    /// Options with the defaults: calls of 5 ms at most, a patience of 250 ms, no events.
    pub fn new(socket: impl Into<PathBuf>, namespace: Namespace, geometry: Geometry) -> Self {
        Self {
            socket: socket.into(),
            engine: "engine".to_owned(),
            client: concat!("terrace ", env!("CARGO_PKG_VERSION")).to_owned(),
            namespace,
            geometry,
            call_budget: Duration::from_millis(5),
            stall_patience: Duration::from_millis(250),
            events: false,
        }
    }

    /// Opens a scheduler session that copies by itself, of the engine with this name.
    pub(crate) fn hello(&self, engine_name: String) -> Hello {
        // Taken apart by name, so that a field added later cannot be forgotten here.
        let Namespace { model, revision, dtype, kv_layout, quantisation, rope, parallel, engine, tenant } =
            self.namespace.clone();
        let Geometry { block_bytes, tokens_per_block, blocks_per_chunk, groups, hash_bytes } = self.geometry;
        Hello {
            version_min: VERSION,
            version_max: VERSION,
            features: vec![SHARED_TABLE.to_owned()],
            role: "scheduler".to_owned(),
            engine: engine_name,
            rank: 0,
            store_workers: 0,
            load_workers: 0,
            namespace: WireNamespace {
                model,
                revision,
                dtype,
                kv_layout,
                quantisation,
                rope,
                parallel,
                engine,
                tenant,
            },
            geometry: WireGeometry { block_bytes, tokens_per_block, blocks_per_chunk, groups, hash_bytes },
            foreign: None,
            client: self.client.clone(),
        }
    }

    /// Length of a key on the wire.
    pub(crate) fn key_bytes(&self) -> usize {
        usize::from(self.geometry.hash_bytes) + 4
    }
}

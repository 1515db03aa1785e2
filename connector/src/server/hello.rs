//! What a `Hello` must hold.

use std::os::fd::OwnedFd;

use terrace_config::{Config, Geometry, Namespace};

use super::connection::Connection;
use super::engine::MAX_WORKERS;
use super::refusal::Refusal;
use super::session::Role;
use crate::protocol::{
    ErrorCode, FrameHeader, Hello, Kind, MAX_HELLO_BYTES, ProtocolError, VERSION, WireGeometry, WireNamespace, decode,
};

/// Longest name of an engine or client, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// A `Hello` that can be served.
#[derive(Debug)]
pub(super) struct Greeting {
    pub hello: Hello,
    pub role: Role,
    pub digest: [u8; 32],
    /// Of any pool that serves it: only the directories differ.
    pub pool: Config,
}

impl Greeting {
    /// Takes the first frame of a connection, whose `header` it is and which is there as a whole: the greeting, and the descriptor that
    /// came with it.
    pub fn take(
        connection: &mut Connection,
        header: &FrameHeader,
        config: &Config,
    ) -> Result<(Self, Option<OwnedFd>), Refusal> {
        let descriptor = connection.take_descriptor(header);
        let hello = match connection.input.frame(MAX_HELLO_BYTES)? {
            Some((_, body)) => decode::<Hello>("Hello", body),
            None => return Err(Refusal::malformed("the first frame is not whole")),
        };
        connection.input.take(header);
        let descriptor = descriptor?;
        if header.kind != Kind::Hello || header.flags.reply || header.flags.error || header.flags.one_way {
            return Err(Refusal::from(ProtocolError::Kind { got: header.kind as u16 }));
        }
        Ok((Self::check(hello?, config, usize::from(descriptor.is_some()))?, descriptor))
    }

    /// Refuses what cannot be served, in the words of the client's user.
    pub fn check(hello: Hello, config: &Config, descriptors: usize) -> Result<Self, Refusal> {
        if hello.version_min > VERSION || hello.version_max < VERSION {
            return Err(Refusal::new(
                ErrorCode::Version,
                format!(
                    "the client speaks versions {} to {} and this daemon {VERSION}: \
                     use a client and a daemon of the same release",
                    hello.version_min, hello.version_max
                ),
            ));
        }
        let role = Role::from_name(&hello.role).ok_or_else(|| {
            Refusal::invalid(format!("role {:?}: give \"scheduler\", \"worker\" or \"tier\"", shortened(&hello.role)))
        })?;
        if hello.engine.is_empty() || hello.engine.len() > MAX_NAME_BYTES || hello.client.len() > MAX_NAME_BYTES {
            return Err(Refusal::invalid(format!(
                "the engine's name must have 1 to {MAX_NAME_BYTES} bytes, and the client's {MAX_NAME_BYTES} at most"
            )));
        }
        if hello.store_workers > MAX_WORKERS || hello.load_workers > MAX_WORKERS || hello.rank >= MAX_WORKERS {
            return Err(Refusal::invalid(format!(
                "rank {}, {} store workers and {} load workers: an engine has at most {MAX_WORKERS} workers",
                hello.rank, hello.store_workers, hello.load_workers
            )));
        }
        if (role == Role::Tier) != hello.foreign.is_some() || (role == Role::Tier) != (descriptors == 1) {
            return Err(Refusal::invalid(
                "a session of role \"tier\" brings a region and its descriptor, and no other session does",
            ));
        }
        let namespace = namespace(&hello.namespace);
        let geometry = geometry(hello.geometry);
        let digest = namespace.digest(&geometry);
        let pool = config.for_pool(0, namespace, geometry, "Hello").map_err(|error| {
            Refusal::invalid(format!("this daemon cannot keep blocks of this shape: {}", shortened(&error.to_string())))
        })?;
        Ok(Self { hello, role, digest, pool })
    }
}

fn namespace(wire: &WireNamespace) -> Namespace {
    let WireNamespace { model, revision, dtype, kv_layout, quantisation, rope, parallel, engine, tenant } = wire;
    Namespace {
        model: model.clone(),
        revision: revision.clone(),
        dtype: dtype.clone(),
        kv_layout: kv_layout.clone(),
        quantisation: quantisation.clone(),
        rope: rope.clone(),
        parallel: parallel.clone(),
        engine: engine.clone(),
        tenant: tenant.clone(),
    }
}

const fn geometry(wire: WireGeometry) -> Geometry {
    let WireGeometry { block_bytes, tokens_per_block, blocks_per_chunk, groups, hash_bytes } = wire;
    Geometry { block_bytes, tokens_per_block, blocks_per_chunk, groups, hash_bytes }
}

/// The start of a text that a client sent.
fn shortened(text: &str) -> String {
    text.chars().take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ForeignRegion;

    fn config() -> Config {
        Config::parse("[primary]\nblocks = 64\n[geometry]\nblock_bytes = \"4KiB\"\n", "test").expect("good")
    }

    fn hello() -> Hello {
        let geometry =
            WireGeometry { block_bytes: 4096, tokens_per_block: 16, blocks_per_chunk: 1, groups: 1, hash_bytes: 32 };
        Hello {
            version_min: 1,
            version_max: 9,
            features: vec!["unheard of".to_owned()],
            role: "scheduler".to_owned(),
            engine: "e".to_owned(),
            rank: 0,
            store_workers: 2,
            load_workers: 1,
            namespace: WireNamespace::default(),
            geometry,
            foreign: None,
            client: "test".to_owned(),
        }
    }

    fn code(hello: Hello, descriptors: usize) -> Option<ErrorCode> {
        Greeting::check(hello, &config(), descriptors).err().map(|refusal| refusal.code)
    }

    #[test]
    fn a_good_one_is_taken_and_each_fault_is_told() {
        assert_eq!(code(hello(), 0), None);
        assert_eq!(code(Hello { version_min: 2, ..hello() }, 0), Some(ErrorCode::Version));
        assert_eq!(code(Hello { version_max: 0, ..hello() }, 0), Some(ErrorCode::Version));
        let foreign = Some(ForeignRegion { rows: 1, row_stride: 4096, offset_bytes: 0 });
        for (wrong, descriptors) in [
            (Hello { role: "boss".to_owned(), ..hello() }, 0),
            (Hello { engine: String::new(), ..hello() }, 0),
            (Hello { engine: "e".repeat(257), ..hello() }, 0),
            (Hello { store_workers: 129, ..hello() }, 0),
            (Hello { rank: 128, ..hello() }, 0),
            (Hello { role: "tier".to_owned(), ..hello() }, 1),
            (Hello { role: "tier".to_owned(), foreign, ..hello() }, 0),
            (Hello { foreign, ..hello() }, 1),
            (Hello { geometry: WireGeometry { block_bytes: 0, ..hello().geometry }, ..hello() }, 0),
            (Hello { geometry: WireGeometry { block_bytes: 1 << 29, ..hello().geometry }, ..hello() }, 0),
            (Hello { geometry: WireGeometry { hash_bytes: 65, ..hello().geometry }, ..hello() }, 0),
        ] {
            assert_eq!(code(wrong.clone(), descriptors), Some(ErrorCode::Invalid), "{wrong:?}");
        }
        assert_eq!(code(Hello { role: "tier".to_owned(), foreign, ..hello() }, 1), None);
    }
}

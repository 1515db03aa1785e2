//! A bare client of the same store: whole objects, as many requests at once as the tier sends, nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientOptions, GetOptions, ObjectStore, PutOptions, PutPayload, RetryConfig};
use tokio::runtime::Runtime;

use super::Place;
use super::rig::noise;

const CONNECT_TIME: Duration = Duration::from_secs(2);

/// The client, on a runtime of the kind that the tier has.
pub(super) struct Bare {
    runtime: Runtime,
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    connections: usize,
    /// Memory that is touched; sent again and again.
    payload: Vec<u8>,
}

impl Bare {
    /// A client for objects of at most `most` bytes. The process has chosen its cryptography before.
    pub fn open(place: &Place, connections: u32, most: u32) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connections = connections as usize;
        let (store, prefix): (Arc<dyn ObjectStore>, _) = match place {
            Place::Bucket { endpoint, bucket, prefix } => {
                let secret = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
                let plain = endpoint.starts_with("http://");
                let options = ClientOptions::new()
                    .with_timeout_disabled()
                    .with_connect_timeout(CONNECT_TIME)
                    .with_pool_max_idle_per_host(connections)
                    .with_no_system_certificates(plain)
                    .with_allow_http(plain);
                let mut builder = AmazonS3Builder::new()
                    .with_bucket_name(bucket)
                    .with_endpoint(endpoint)
                    .with_region("us-east-1")
                    .with_unsigned_payload(true)
                    .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
                    .with_access_key_id(secret("AWS_ACCESS_KEY_ID")?)
                    .with_secret_access_key(secret("AWS_SECRET_ACCESS_KEY")?)
                    .with_client_options(options);
                if let Ok(token) = std::env::var("AWS_SESSION_TOKEN") {
                    builder = builder.with_token(token);
                }
                (Arc::new(builder.build()?), Path::parse(prefix)?)
            }
            Place::Directory(directory) => (Arc::new(LocalFileSystem::new_with_prefix(directory)?), Path::default()),
        };
        Ok(Self { runtime, store, prefix, connections, payload: noise(most) })
    }

    fn path(&self, name: &str, number: u64) -> Path {
        self.prefix.clone().join("bare").join(name).join(format!("{number:08}"))
    }

    /// Writes `count` objects named after `name`. Answers bytes a second.
    pub fn put_all(&self, name: &str, count: u64, bytes: u32) -> anyhow::Result<f64> {
        let body = self.payload.get(..bytes as usize).context("an object is larger than was announced")?;
        let payload = PutPayload::from(body.to_vec());
        let start = Instant::now();
        let sending = stream::iter(0..count)
            .map(|number| {
                let (path, payload) = (self.path(name, number), payload.clone());
                async move { self.store.put_opts(&path, payload, PutOptions::default()).await }
            })
            .buffer_unordered(self.connections)
            .try_for_each(|_| async { Ok(()) });
        self.runtime.block_on(sending)?;
        Ok(count as f64 * f64::from(bytes) / start.elapsed().as_secs_f64())
    }

    /// Reads them `passes` times and drops what comes. Answers bytes a second.
    pub fn get_all(&self, name: &str, count: u64, bytes: u32, passes: usize) -> anyhow::Result<f64> {
        let start = Instant::now();
        let reading = stream::iter((0..passes).flat_map(|_| 0..count))
            .map(|number| {
                let path = self.path(name, number);
                async move {
                    let answer = self.store.get_opts(&path, GetOptions::default()).await?;
                    answer.into_stream().try_fold(0, |sum, piece| async move { Ok(sum + piece.len()) }).await
                }
            })
            .buffer_unordered(self.connections)
            .try_fold(0, |sum, got| async move { Ok(sum + got) });
        let got = self.runtime.block_on(reading)?;
        let seconds = start.elapsed().as_secs_f64();
        anyhow::ensure!(got as u64 == passes as u64 * count * u64::from(bytes), "the bare client read {got} bytes");
        Ok(got as f64 / seconds)
    }

    /// Deletes all that this run has written, the tiers' objects too. A directory is removed by its owner.
    pub fn delete_all(&self) -> anyhow::Result<()> {
        if self.prefix == Path::default() {
            return Ok(());
        }
        let all = self.store.list(Some(&self.prefix)).map_ok(|object| object.location).boxed();
        let deleting = self.store.delete_stream(all).try_for_each(|_| async { Ok(()) });
        self.runtime.block_on(deleting).context("the bench's objects could not be deleted")
    }
}

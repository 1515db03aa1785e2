//! A bucket of a real server, behind a proxy.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tempfile::TempDir;
use terrace_test_s3::{Count, Operation, Proxy, SeaweedFs, Server, client};

/// The bucket's name.
pub const BUCKET: &str = "terrace";
/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Deletions at once.
const DELETIONS: usize = 16;

/// A server of its own for each test, as tests kill it.
pub struct Bucket {
    pub server: Server,
    pub proxy: Proxy,
    /// Behind the server: removed when that is gone.
    _dir: TempDir,
}

impl Bucket {
    /// An empty bucket.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let server = SeaweedFs::start(dir.path()).expect("a server");
        server.create_bucket(BUCKET).expect("a bucket");
        let proxy = Proxy::start(server.address()).expect("a proxy");
        Self { server, proxy, _dir: dir }
    }

    /// Another way to the same bucket, with counts of its own.
    pub fn another_way(&self) -> Proxy {
        Proxy::start(self.server.address()).expect("a proxy")
    }

    /// Names of all objects whose name has `part` in it, past the proxy.
    pub fn objects(&self, part: &str) -> Vec<Path> {
        let store = self.client();
        let all = async { store.list(None).map_ok(|object| object.location).try_collect::<Vec<_>>().await };
        let mut all = block_on(all).expect("a listing");
        all.retain(|path| path.as_ref().contains(part));
        all
    }

    /// Lists what is there and deletes that, past the proxy. Answers how many objects it was.
    pub fn empty(&self) -> usize {
        let (store, all) = (self.client(), self.objects(""));
        let delete = futures_util::stream::iter(&all).map(|path| store.delete(path)).buffer_unordered(DELETIONS);
        block_on(delete.try_collect::<Vec<()>>()).expect("deleted");
        all.len()
    }

    fn client(&self) -> AmazonS3 {
        client(&self.server.endpoint(), BUCKET).expect("a client")
    }
}

/// GETs of segments that passed through.
pub fn segment_gets(proxy: &Proxy) -> Count {
    proxy.counts().under("/segments/").of(Operation::Get)
}

/// PUTs of log objects that passed through.
pub fn log_puts(proxy: &Proxy) -> Count {
    proxy.counts().under("/log/").of(Operation::Put)
}

/// Waits until it is so.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

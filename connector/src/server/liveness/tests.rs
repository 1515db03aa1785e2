//! Connections that end while their process lives, or seems to. The time is given, not waited for.

use std::time::Duration;

use rustix::process::{PidfdFlags, getpid, pidfd_open};
use terrace_tiers::Time;

use super::UNSEEN;
use crate::protocol::{Kind, PrepareStore};
use crate::server::testing::{SESSION, hello, keys, pool, serve, writing};

#[test]
fn a_process_that_nobody_sees_counts_as_gone_a_while_after_its_connection() {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor of this process");
    for (pidfd, is_kept) in [(None, false), (Some(own), true)] {
        let (mut pool, _wake, mut client) = pool(hello(None), None, pidfd);
        let store = PrepareStore { request: 1, job: 1, allow_partial: false, keys: keys(4).1 };
        serve(&mut pool, &mut client, Kind::PrepareStore, &store);
        assert_eq!(writing(&pool), 4.0);
        drop(client);
        pool.readable(SESSION);
        let closed_at = pool.sessions.get(&SESSION).and_then(|session| session.closed_at).expect("it is kept");
        pool.keep_sessions(Time(closed_at.plus(UNSEEN).0 - 1));
        assert_eq!((pool.sessions.len(), writing(&pool)), (1, 4.0), "it may still write");
        pool.keep_sessions(closed_at.plus(UNSEEN));
        let kept = usize::from(is_kept);
        assert_eq!((pool.sessions.len(), pool.engines.len(), writing(&pool)), (kept, kept, 4.0 * kept as f64));
        // One that is seen to live keeps them for ever.
        pool.keep_sessions(closed_at.plus(Duration::from_secs(1_000_000)));
        assert_eq!(pool.sessions.len(), kept);
    }
}

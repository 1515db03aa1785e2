//! A tenant's keys, read when a pool opens: names and seals are made with keys that are derived from them.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use terrace_config::TenantConfig;
use terrace_primary::{Key, MAX_HASH_BYTES};

use crate::error::TierError;

/// Longest secret.
const MAX_SECRET_BYTES: usize = 4096;
/// What is read of a file or a pipe: the longest secret, and white space.
const MOST_READ: usize = MAX_SECRET_BYTES + 1024;
/// Shortest secret: 128 bits, were each byte random.
const LEAST_SECRET_BYTES: usize = 16;
/// Shortest block hashes whose permutation hides anything.
pub const LEAST_HASH_BYTES: u8 = 16;
/// How long a command may take to print a key.
const COMMAND: Duration = Duration::from_secs(10);
/// How often it is looked whether the command has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Rounds of the permutation of names.
const ROUNDS: u8 = 4;

// Contexts of BLAKE3's key derivation. They never change: stored blocks hang on them.
const PLAIN_NAMES: &str = "terrace 2026-11 names of plain blocks";
const SEALED_NAMES: &str = "terrace 2026-11 names of sealed blocks";
const SEALS: &str = "terrace 2026-11 seals of blocks";
const IDS: &str = "terrace 2026-11 ids of keys";

/// One key of a tenant, for one namespace.
#[derive(Clone)]
pub struct TenantKey {
    id: [u8; 8],
    names: [u8; 32],
    seals: [u8; 32],
}

impl std::fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TenantKey {
    /// What follows from a secret. Other namespaces, and sealed blocks, have other names with the same secret.
    pub fn derive(secret: &[u8], namespace: &[u8; 32], sealed: bool) -> Self {
        let derive = |context: &str| {
            let mut hasher = blake3::Hasher::new_derive_key(context);
            hasher.update(namespace);
            hasher.update(secret);
            *hasher.finalize().as_bytes()
        };
        let names = derive(if sealed { SEALED_NAMES } else { PLAIN_NAMES });
        let [a, b, c, d, e, f, g, h, ..] = derive(IDS);
        Self { id: [a, b, c, d, e, f, g, h], names, seals: derive(SEALS) }
    }

    /// Tells keys apart without telling them.
    pub const fn id(&self) -> [u8; 8] {
        self.id
    }

    /// The key of one write, of which `salt` is new and random.
    pub(super) fn seal_key(&self, salt: &[u8; 32]) -> [u8; 32] {
        *blake3::keyed_hash(&self.seals, salt).as_bytes()
    }

    /// The name under which `key` is stored: its hash permuted, its group as it is. No two keys have one name.
    pub fn name_of(&self, key: &Key) -> Key {
        self.permute(key, 0..ROUNDS)
    }

    /// The key that is stored under this name.
    pub fn key_of(&self, name: &Key) -> Key {
        self.permute(name, (0..ROUNDS).rev())
    }

    /// A Feistel network over the halves of the hash, whose round function is BLAKE3 in keyed mode; each round is its own inverse.
    fn permute(&self, key: &Key, rounds: impl Iterator<Item = u8>) -> Key {
        let len = key.hash().len();
        let mut hash = [0; MAX_HASH_BYTES];
        for (to, from) in hash.iter_mut().zip(key.hash()) {
            *to = *from;
        }
        let (left, right) = hash.split_at_mut(len / 2);
        let right = right.get_mut(..len - len / 2).unwrap_or_default();
        for round in rounds {
            let (from, to): (&[u8], &mut [u8]) = if round % 2 == 0 { (right, left) } else { (left, right) };
            // One block of BLAKE3: 37 bytes at most.
            let mut input = [0; 5 + MAX_HASH_BYTES / 2];
            let parts = [round].into_iter().chain(key.group().to_be_bytes()).chain(from.iter().copied());
            input.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
            let input = input.get(..5 + from.len()).unwrap_or_default();
            let mask = blake3::keyed_hash(&self.names, input);
            to.iter_mut().zip(mask.as_bytes()).for_each(|(to, mask)| *to ^= mask);
        }
        let hash = hash.get(..len).unwrap_or_default();
        // The same length as before, so it is a key.
        Key::new(hash, key.group()).unwrap_or(*key)
    }
}

/// All keys of a tenant, for one namespace: the first is written with, all are read with.
#[derive(Clone, Debug)]
pub struct Keyring {
    keys: Vec<TenantKey>,
    sealed: bool,
}

impl Keyring {
    /// A ring of keys that were derived for the same namespace. `None`: there is none.
    pub fn new(keys: Vec<TenantKey>, sealed: bool) -> Option<Self> {
        (!keys.is_empty()).then_some(Self { keys, sealed })
    }

    /// Reads a tenant's secrets. `None`: it has none. A key that is only read with and cannot be had is said in the log: what it
    /// wrote is a miss. Blocks while files are read and commands run.
    ///
    /// # Errors
    /// [`TierError::Tenant`] if the first key cannot be had, or block hashes are too short to hide: then nothing may be stored.
    pub fn load(config: &TenantConfig, namespace: &[u8; 32], hash_bytes: u8) -> Result<Option<Self>, TierError> {
        let files = config.key_files.iter().map(|file| (file, Source::File));
        let sources: Vec<_> = files.chain(config.key_commands.iter().map(|line| (line, Source::Command))).collect();
        let error = |problem: String| TierError::Tenant { tenant: config.name.clone(), problem };
        if !sources.is_empty() && hash_bytes < LEAST_HASH_BYTES {
            return Err(error(format!(
                "it has a key, and block hashes of {hash_bytes} bytes are too short to be hidden: use an engine's hashes of {LEAST_HASH_BYTES} \
                 bytes or more, or no key"
            )));
        }
        let mut keys = Vec::new();
        for (at, (place, source)) in sources.into_iter().enumerate() {
            match source.read(place) {
                Ok(secret) => keys.push(TenantKey::derive(&secret, namespace, config.encrypt)),
                Err(why) if at == 0 => return Err(error(format!("the key {place:?} cannot be had: {why}"))),
                Err(why) => {
                    tracing::warn!(tenant = %config.name, key = %place, "a key cannot be had: what it wrote is a miss: {why}");
                }
            }
        }
        Ok(Self::new(keys, config.encrypt))
    }

    /// The key that writes.
    pub fn first(&self) -> Option<&TenantKey> {
        self.keys.first()
    }

    /// All keys, the one that writes first.
    pub fn keys(&self) -> &[TenantKey] {
        &self.keys
    }

    /// Whether blocks are sealed.
    pub const fn is_sealed(&self) -> bool {
        self.sealed
    }
}

#[derive(Clone, Copy)]
enum Source {
    File,
    Command,
}

impl Source {
    /// The secret, without the white space around it. Nothing that it says holds a secret.
    fn read(self, place: &str) -> Result<Vec<u8>, String> {
        let bytes = match self {
            Self::File => File::open(place).and_then(|file| {
                warn_if_open(place, &file.metadata()?);
                let mut bytes = Vec::new();
                file.take(MOST_READ as u64 + 1).read_to_end(&mut bytes)?;
                Ok(bytes)
            }),
            Self::Command => run(place, COMMAND),
        };
        let bytes = bytes.map_err(|error| error.to_string())?;
        let secret = bytes.trim_ascii();
        match secret.len() {
            LEAST_SECRET_BYTES..=MAX_SECRET_BYTES => Ok(secret.to_vec()),
            len => Err(format!(
                "it has {len} bytes, {LEAST_SECRET_BYTES} to {MAX_SECRET_BYTES} are needed: 32 random bytes in hexadecimal, say"
            )),
        }
    }
}

/// Whether others than its owner may read a file of this mode.
const fn is_open(mode: u32) -> bool {
    mode & 0o077 != 0
}

fn warn_if_open(place: &str, metadata: &Metadata) {
    if is_open(metadata.mode()) {
        let mode = format!("{:03o}", metadata.mode() & 0o777);
        tracing::warn!(file = place, mode, "others than its owner can reach the file of a tenant's key: chmod 600");
    }
}

/// What a line of the shell prints.
fn run(line: &str, within: Duration) -> io::Result<Vec<u8>> {
    let mut command = Command::new("/bin/sh");
    // A group of its own, so that what it has started ends with it.
    let command = command.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let printed = printed_by(&mut child, within);
    // One that has ended is nobody any more: its number may be another's.
    if let Ok(None) = child.try_wait() {
        stop(&mut child);
    }
    printed
}

/// Waits for a command as long as it may take. What it has left behind in its group may still hold the pipe: the end of the command
/// counts, not that of the pipe.
#[allow(clippy::disallowed_methods, reason = "a real process is waited for, before there is a tier")]
fn printed_by(child: &mut Child, within: Duration) -> io::Result<Vec<u8>> {
    let mut pipe = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    rustix::io::ioctl_fionbio(&pipe, true)?;
    let until = Instant::now() + within;
    let mut bytes = Vec::new();
    loop {
        let status = child.try_wait()?;
        take(&mut pipe, &mut bytes)?;
        match status {
            // Longer than a key may be: what there is says so.
            _ if bytes.len() > MOST_READ => return Ok(bytes),
            Some(status) if status.success() => return Ok(bytes),
            Some(status) => return Err(io::Error::other(format!("the command ended with {status}"))),
            None if Instant::now() >= until => {
                return Err(io::Error::other(format!("the command did not end within {within:?}")));
            }
            None => std::thread::sleep(LOOK),
        }
    }
}

/// Takes what is in the pipe now, as far as a key may be long.
fn take(pipe: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<()> {
    match pipe.take((MOST_READ + 1).saturating_sub(bytes.len()) as u64).read_to_end(bytes) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

/// Ends a command and its group.
fn stop(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config(key_files: Vec<String>, key_commands: Vec<String>) -> TenantConfig {
        TenantConfig { name: "acme".to_owned(), key_files, key_commands, ..TenantConfig::default() }
    }

    /// Made by another implementation of the formula of docs/format.md. They never change: stored blocks hang on them.
    #[test]
    fn golden_names() {
        let key = TenantKey::derive(b"0123456789abcdef", &[7; 32], false);
        let name = key.name_of(&Key::new(&[1; 32], 2).expect("a key"));
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            (hex(name.hash()).as_str(), name.group(), hex(&key.id()).as_str()),
            ("f96f5727d33e5b9aae992348be3fdb8d4fd1b23b64133b18803b894611e18c2e", 2, "4fff6831a1fbb8e5")
        );
    }

    proptest! {
        #[test]
        fn names_are_a_permutation(hash in prop::collection::vec(any::<u8>(), 1..=64), group: u32, secret: [u8; 16]) {
            let key = Key::new(&hash, group).expect("a key");
            let ring = TenantKey::derive(&secret, &[1; 32], true);
            let name = ring.name_of(&key);
            prop_assert_eq!((name.hash().len(), name.group()), (hash.len(), group));
            prop_assert_eq!(ring.key_of(&name), key);
        }
    }

    #[test]
    fn another_secret_namespace_or_kind_gives_other_names() {
        let key = Key::new(&[3; 32], 0).expect("a key");
        let mut names = vec![key];
        for (secret, namespace, sealed) in
            [(b"a", [1; 32], false), (b"b", [1; 32], false), (b"a", [2; 32], false), (b"a", [1; 32], true)]
        {
            names.push(TenantKey::derive(secret, &namespace, sealed).name_of(&key));
        }
        // Another group of the same hash shows nothing of it.
        names.push(
            Key::new(
                TenantKey::derive(b"a", &[1; 32], false).name_of(&Key::new(&[3; 32], 1).expect("a key")).hash(),
                0,
            )
            .expect("a key"),
        );
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn secrets_come_from_files_and_commands_and_are_not_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("key");
        std::fs::write(&file, "0123456789abcdef\n").expect("written");
        let file = file.display().to_string();
        let load = |config: &TenantConfig| Keyring::load(config, &[7; 32], 32);
        let by_file = load(&config(vec![file.clone()], vec![])).expect("read").expect("a key");
        let by_command = load(&config(vec![], vec![format!("cat {file}")])).expect("read").expect("a key");
        assert_eq!(by_file.keys()[0].id(), by_command.keys()[0].id());
        assert_eq!(by_file.keys()[0].id(), TenantKey::derive(b"0123456789abcdef", &[7; 32], false).id());
        assert!(!format!("{by_file:?}").contains("names"), "{by_file:?}");
        assert!(load(&config(vec![], vec![])).expect("fine").is_none());
        // The first must be there; others may be missing.
        let missing = dir.path().join("missing").display().to_string();
        assert!(load(&config(vec![missing.clone(), file.clone()], vec![])).is_err());
        assert_eq!(load(&config(vec![file.clone(), missing], vec![])).expect("read").expect("a key").keys().len(), 1);
        for command in ["exit 3", "echo short", "yes"] {
            let error = load(&config(vec![], vec![command.to_owned()])).expect_err(command).to_string();
            assert!(error.starts_with("tenant acme: the key"), "{error}");
        }
        let error = Keyring::load(&config(vec![file], vec![]), &[7; 32], 8).expect_err("short hashes").to_string();
        assert!(error.contains("too short to be hidden"), "{error}");
    }

    #[test]
    fn a_command_that_hangs_is_given_up_and_what_it_leaves_behind_is_not_waited_for() {
        let start = Instant::now();
        let error = run("echo 0123456789abcdef; sleep 60", Duration::from_millis(50)).expect_err("it hangs");
        assert!(error.to_string().contains("did not end within 50ms"), "{error}");
        assert_eq!(run("sleep 60 & echo secret", COMMAND).expect("it ended"), b"secret\n");
        assert!(start.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn the_file_of_a_key_is_its_owners() {
        assert!([0o640, 0o604, 0o620, 0o100_644].into_iter().all(is_open));
        assert!([0o600, 0o400, 0o100_600].into_iter().all(|mode| !is_open(mode)));
    }
}

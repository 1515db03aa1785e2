//! Where objects stand: `<prefix>/<namespace>/...`, each name spelled in exactly one way. `docs/format.md` draws the tree.

use object_store::path::Path;

use super::id::{SegmentId, Stamp, WriterId};
use crate::tenant::LABEL;

/// Hex digits of a `u64` in a name: fixed, so that names sort as their numbers do.
const DIGITS: usize = 16;

/// Name of a log object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogName {
    /// When this copy was written. Two copies of one object may differ in it, and in nothing else.
    pub stamp: Stamp,
    /// Who wrote it.
    pub writer: WriterId,
    /// Which of the writer's log objects: 1, 2, 3...
    pub sequence: u64,
}

/// Name of a part of snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartName {
    /// Who wrote it.
    pub writer: WriterId,
    /// Which of the writer's parts.
    pub number: u64,
}

/// The names of one namespace. Names that a method here would not spell are nobody's: parsers answer `None`.
#[derive(Clone, Debug)]
pub struct Names {
    root: Path,
    segments: Path,
    logs: Path,
    snapshots: Path,
    parts: Path,
    leases: Path,
}

impl Names {
    /// Names below `prefix` (of a bucket or a directory; may be empty).
    pub fn new(prefix: &str, namespace: &[u8; 32]) -> Self {
        let digest: String = namespace.iter().map(|byte| format!("{byte:02x}")).collect();
        let root = Path::from(prefix).join(digest);
        let below = |name: &str| root.clone().join(name);
        Self {
            segments: below("segments"),
            logs: below("log"),
            snapshots: below("snapshots"),
            parts: below("parts"),
            leases: below("lease"),
            root,
        }
    }

    /// The digest that `name`, the last part of a namespace's root, stands for.
    pub fn parse_namespace(name: &str) -> Option<[u8; 32]> {
        let mut digest = [0; 32];
        let pairs = name.as_bytes().as_chunks::<2>();
        if pairs.0.len() != digest.len() || !pairs.1.is_empty() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(pairs.0) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(digest)
    }

    /// All of the namespace.
    pub const fn root(&self) -> &Path {
        &self.root
    }

    /// The readable file that says whose namespace it is.
    pub fn label(&self) -> Path {
        self.root.clone().join(LABEL)
    }

    /// All segments.
    pub const fn segments(&self) -> &Path {
        &self.segments
    }

    /// All log objects.
    pub const fn logs(&self) -> &Path {
        &self.logs
    }

    /// All manifests.
    pub const fn snapshots(&self) -> &Path {
        &self.snapshots
    }

    /// All parts of snapshots.
    pub const fn parts(&self) -> &Path {
        &self.parts
    }

    /// All terms of the collector's lease.
    pub const fn leases(&self) -> &Path {
        &self.leases
    }

    /// A segment. The folder is the lowest byte of the CRC32 of its id, so that stores that divide by prefix spread the load.
    pub fn segment(&self, id: SegmentId) -> Path {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&id.writer.0.to_be_bytes());
        crc.update(&id.number.to_be_bytes());
        self.segments.clone().join(format!("{:02x}", crc.finalize() as u8)).join(format!("{id}.seg"))
    }

    /// The segment of this name.
    pub fn parse_segment(&self, path: &Path) -> Option<SegmentId> {
        let (_, name) = below(&self.segments, path)?.split_once('/')?;
        let [writer, number] = numbers(name, ".seg")?;
        let id = SegmentId { writer: WriterId(writer), number };
        (self.segment(id) == *path).then_some(id)
    }

    /// A log object.
    pub fn log(&self, name: LogName) -> Path {
        self.logs.clone().join(format!("{:016x}-{}-{:016x}.log", name.stamp.0, name.writer, name.sequence))
    }

    /// The log object of this name.
    pub fn parse_log(&self, path: &Path) -> Option<LogName> {
        let [stamp, writer, sequence] = numbers(below(&self.logs, path)?, ".log")?;
        Some(LogName { stamp: Stamp(stamp), writer: WriterId(writer), sequence })
    }

    /// Sorts before every log object of this stamp or a later one, and behind all of earlier ones: where a listing starts.
    pub fn log_after(&self, stamp: Stamp) -> Path {
        self.logs.clone().join(format!("{:016x}", stamp.0))
    }

    /// A manifest.
    pub fn manifest(&self, number: u64) -> Path {
        self.snapshots.clone().join(format!("{number:016x}.manifest"))
    }

    /// The number of the manifest of this name.
    pub fn parse_manifest(&self, path: &Path) -> Option<u64> {
        let [number] = numbers(below(&self.snapshots, path)?, ".manifest")?;
        Some(number)
    }

    /// A part of snapshots.
    pub fn part(&self, name: PartName) -> Path {
        self.parts.clone().join(format!("{}-{:016x}.part", name.writer, name.number))
    }

    /// The part of this name.
    pub fn parse_part(&self, path: &Path) -> Option<PartName> {
        let [writer, number] = numbers(below(&self.parts, path)?, ".part")?;
        Some(PartName { writer: WriterId(writer), number })
    }

    /// A term of the collector's lease.
    pub fn lease(&self, term: u64) -> Path {
        self.leases.clone().join(format!("{term:016x}"))
    }

    /// The term of this name.
    pub fn parse_lease(&self, path: &Path) -> Option<u64> {
        let [term] = numbers(below(&self.leases, path)?, "")?;
        Some(term)
    }
}

/// What `path` has behind `prefix` and a slash.
fn below<'a>(prefix: &Path, path: &'a Path) -> Option<&'a str> {
    path.as_ref().strip_prefix(prefix.as_ref())?.strip_prefix('/')
}

/// The numbers of a name: 16 lower-case hex digits each, dashes between, then `suffix`.
fn numbers<const N: usize>(name: &str, suffix: &str) -> Option<[u64; N]> {
    let mut words = name.strip_suffix(suffix)?.split('-');
    let mut numbers = [0; N];
    for number in &mut numbers {
        let word = words.next().filter(|word| word.len() == DIGITS)?;
        for byte in word.bytes() {
            *number = *number << 4 | u64::from(digit(byte)?);
        }
    }
    words.next().is_none().then_some(numbers)
}

/// The value of a lower-case hex digit.
const fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names() -> Names {
        Names::new("pre/fix", &[0xa5; 32])
    }

    #[test]
    fn names_are_spelled_as_the_format_page_says() {
        let names = names();
        let root = format!("pre/fix/{}", "a5".repeat(32));
        let id = SegmentId { writer: WriterId(0x0123), number: 0xabc };
        let at = |path: Path| path.as_ref().strip_prefix(&root).map(str::to_owned);
        let log = LogName { stamp: Stamp(1), writer: WriterId(2), sequence: 3 };
        let part = PartName { writer: WriterId(4), number: 5 };
        let cases = [
            (names.segment(id), "/segments/20/0000000000000123-0000000000000abc.seg"),
            (names.log(log), "/log/0000000000000001-0000000000000002-0000000000000003.log"),
            (names.manifest(9), "/snapshots/0000000000000009.manifest"),
            (names.part(part), "/parts/0000000000000004-0000000000000005.part"),
            (names.lease(10), "/lease/000000000000000a"),
        ];
        for (path, wanted) in cases {
            assert_eq!(at(path).as_deref(), Some(wanted));
        }
        assert_eq!(Names::new("", &[0; 32]).root().as_ref(), "00".repeat(32), "no prefix, no slash");
        assert_eq!(Names::parse_namespace(&"a5".repeat(32)), Some([0xa5; 32]));
    }

    #[test]
    fn other_spellings_are_nobodys() {
        let names = names();
        let id = SegmentId { writer: WriterId(0x0123), number: 0xabc };
        let good = names.segment(id);
        let good = good.as_ref();
        let wrong = [
            good.replace("/20/", "/21/"),
            good.replace("abc.seg", "ABC.seg"),
            good.replace("abc.seg", "abc.log"),
            good.replace("-0000000000000abc", "-abc"),
            good.replace(".seg", "-0000000000000000.seg"),
            good.replace("/segments/20/", "/segments/"),
            good.replace("pre/fix", "pre"),
            good.replace("0000000000000123", "000000000000+123"),
            format!("{good}/x"),
        ];
        for path in wrong {
            assert_ne!(path, good);
            assert_eq!(names.parse_segment(&Path::from(path.as_str())), None, "{path}");
        }
        for name in ["", "a5", &"A5".repeat(32), &"a5".repeat(33), &"g5".repeat(32), &"é".repeat(32)] {
            assert_eq!(Names::parse_namespace(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_is_named_is_parsed(a: u64, b: u64, c: u64) {
            let names = names();
            let id = SegmentId { writer: WriterId(a), number: b };
            prop_assert_eq!(names.parse_segment(&names.segment(id)), Some(id));
            let log = LogName { stamp: Stamp(a), writer: WriterId(b), sequence: c };
            prop_assert_eq!(names.parse_log(&names.log(log)), Some(log));
            prop_assert_eq!(names.parse_manifest(&names.manifest(a)), Some(a));
            let part = PartName { writer: WriterId(a), number: b };
            prop_assert_eq!(names.parse_part(&names.part(part)), Some(part));
            prop_assert_eq!(names.parse_lease(&names.lease(a)), Some(a));
            // What is of one kind is of no other.
            prop_assert_eq!(names.parse_log(&names.segment(id)), None);
            prop_assert_eq!(names.parse_part(&names.log(log)), None);
        }

        #[test]
        fn logs_are_listed_from_a_stamp_on(a: u64, b: u64, writer: u64, sequence: u64) {
            let names = names();
            let path = names.log(LogName { stamp: Stamp(a), writer: WriterId(writer), sequence });
            prop_assert_eq!(names.log_after(Stamp(b)) < path, b <= a);
        }

        #[test]
        fn no_path_is_too_strange(text: String, below in "[0-9a-f./-]{0,60}") {
            let names = names();
            for path in [Path::from(text), Path::from(format!("{}/{below}", names.logs())), Path::from(format!("{}/{below}", names.segments()))] {
                if let Some(log) = names.parse_log(&path) {
                    prop_assert_eq!(names.log(log), path);
                } else if let Some(id) = names.parse_segment(&path) {
                    prop_assert_eq!(names.segment(id), path);
                }
            }
        }
    }
}

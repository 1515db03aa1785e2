//! The label of a namespace in a block directory.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use terrace_config::{Geometry, MAX_LABEL_BYTES, Namespace};

use super::sealed_digest;
use crate::nvme::name::namespace_dir;

/// Name of the label, in the namespace's directory or below its prefix in a bucket.
pub const LABEL: &str = "NAMESPACE";

/// What a label says, if it is that of this namespace: a label in the wrong place, or one that somebody made up, does not give the digest.
pub(crate) fn parse_label(digest: &[u8; 32], bytes: &[u8]) -> Option<(Namespace, Geometry)> {
    let (namespace, geometry) = Namespace::from_label(std::str::from_utf8(bytes).ok()?)?;
    let plain = namespace.digest(&geometry);
    (plain == *digest || sealed_digest(&plain) == *digest).then_some((namespace, geometry))
}

/// The label of a namespace below the block directory `root`. `None`: there is none, or it is not this namespace's.
pub fn read_label(root: &Path, digest: &[u8; 32]) -> Option<(Namespace, Geometry)> {
    let path = root.join(namespace_dir(digest).as_str()).join(LABEL);
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_LABEL_BYTES as u64 + 1).read_to_end(&mut bytes).ok()?;
    parse_label(digest, &bytes)
}

/// Writes the label below `root` unless it stands there. A reader sees all of it or nothing. Blocks.
pub(crate) fn write_label(root: &Path, digest: &[u8; 32], label: &str) -> io::Result<()> {
    if read_label(root, digest).is_some() {
        return Ok(());
    }
    let dir = root.join(namespace_dir(digest).as_str());
    DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    let temp = dir.join(format!("{LABEL}.new"));
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temp)?;
    file.write_all(label.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temp, dir.join(LABEL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry =
        Geometry { block_bytes: 4096, tokens_per_block: 16, blocks_per_chunk: 1, groups: 1, hash_bytes: 32 };

    #[test]
    fn a_label_counts_only_where_it_belongs() {
        let root = tempfile::tempdir().expect("a directory");
        let of = |tenant: &str| Namespace { tenant: tenant.to_owned(), ..Namespace::default() };
        let (a, b) = (of("a"), of("b"));
        let (da, db) = (a.digest(&GEOMETRY), b.digest(&GEOMETRY));
        assert_eq!(read_label(root.path(), &da), None, "an older directory");
        write_label(root.path(), &da, &a.to_label(&GEOMETRY)).expect("written");
        assert_eq!(read_label(root.path(), &da), Some((a.clone(), GEOMETRY)));
        // One that says it is another's is nobody's, and is replaced.
        write_label(root.path(), &db, &a.to_label(&GEOMETRY)).expect("written");
        assert_eq!(read_label(root.path(), &db), None);
        write_label(root.path(), &db, &b.to_label(&GEOMETRY)).expect("written");
        assert_eq!(read_label(root.path(), &db), Some((b, GEOMETRY)));
    }
}

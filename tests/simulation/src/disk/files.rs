//! A file system in memory that knows what a power loss would leave of it.
//!
//! Each file keeps its bytes as a reader sees them and as the medium would give them back; each change of a name goes to a
//! journal that reaches the medium later, in order. Process death loses nothing of either; power loss loses what
//! was not flushed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::rng::Rng;

/// What a write reaches the medium in: parts of this size are whole or not there, in any mixture.
pub const SECTOR_BYTES: usize = 512;
/// What files are given room in.
pub const PAGE_BYTES: usize = 4096;

/// An absolute path in UTF-8: cheap to copy and to compare.
pub type Name = Arc<str>;

/// What a path stands in; `None` for the root of all.
fn parent(path: &str) -> Option<&str> {
    let (parent, _) = path.rsplit_once('/')?;
    Some(if parent.is_empty() { "/" } else { parent })
}

/// Names a file, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ino(pub u64);

/// Why an operation failed, as the operating system says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// ENOENT.
    NotFound,
    /// EEXIST.
    Exists,
    /// ENOTDIR or EISDIR.
    Kind,
    /// The file is gone for good.
    Stale,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    clean: bool,
    modified_ns: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Folder(Name),
    Link(Name, Ino),
    Rename(Name, Name),
    Swap(Name, Name),
    Unlink(Name),
}

#[derive(Clone, Debug, Default)]
struct Names {
    folders: BTreeSet<Name>,
    files: BTreeMap<Name, Ino>,
}

impl Names {
    /// Applies a change as far as it makes sense: after a power loss its predecessors may be missing.
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Folder(path) => {
                self.folders.insert(path.clone());
            }
            Change::Link(path, ino) => {
                if parent(path).is_some_and(|parent| self.folders.contains(parent)) {
                    self.files.insert(path.clone(), *ino);
                }
            }
            Change::Rename(from, to) => {
                if parent(to).is_some_and(|parent| self.folders.contains(parent))
                    && let Some(ino) = self.files.remove(from)
                {
                    self.files.insert(to.clone(), ino);
                }
            }
            Change::Swap(one, other) => {
                if let (Some(a), Some(b)) = (self.files.get(one).copied(), self.files.get(other).copied()) {
                    self.files.insert(one.clone(), b);
                    self.files.insert(other.clone(), a);
                }
            }
            Change::Unlink(path) => {
                self.files.remove(path);
            }
        }
    }
}

/// The tree of files.
#[derive(Clone, Debug, Default)]
pub struct Files {
    inodes: BTreeMap<Ino, Inode>,
    open: BTreeMap<Ino, u32>,
    now: Names,
    durable: Names,
    journal: Vec<Change>,
    next_ino: u64,
    /// How far the date is ahead of the clock, or behind by wrapping.
    ahead_ns: u64,
}

impl Files {
    /// A tree that holds these folders, durably, with their ancestors.
    pub fn new(roots: &[Name]) -> Self {
        let mut files = Self::default();
        for root in roots {
            for folder in
                std::iter::successors(Some(&**root), |folder| parent(folder)).take_while(|folder| *folder != "/")
            {
                files.now.folders.insert(folder.into());
            }
        }
        files.now.folders.insert("/".into());
        files.durable = files.now.clone();
        files
    }

    /// Makes a folder; its parent must exist.
    pub fn make_folder(&mut self, path: &str) -> Result<(), Errno> {
        if self.now.files.contains_key(path) || self.now.folders.contains(path) {
            return Err(Errno::Exists);
        }
        self.parent(path)?;
        self.change(Change::Folder(path.into()));
        Ok(())
    }

    /// Opens the file of this name; it lives until it is closed, whatever becomes of the name.
    pub fn open(&mut self, path: &str) -> Result<Ino, Errno> {
        let ino = self.find(path)?;
        *self.open.entry(ino).or_default() += 1;
        Ok(ino)
    }

    /// Opens the file of this name, emptied, and makes it if it is not there.
    pub fn create(&mut self, path: &str, now_ns: u64) -> Result<Ino, Errno> {
        if self.now.folders.contains(path) {
            return Err(Errno::Kind);
        }
        self.parent(path)?;
        match self.now.files.get(path).copied() {
            Some(ino) => self.set_len(ino, 0)?,
            None => {
                let ino = Ino(self.next_ino);
                self.next_ino += 1;
                let modified_ns = now_ns.wrapping_add(self.ahead_ns);
                self.inodes.insert(ino, Inode { modified_ns, ..Inode::default() });
                self.change(Change::Link(path.into(), ino));
            }
        }
        self.open(path)
    }

    /// Closes one open of the file.
    pub fn close(&mut self, ino: Ino) {
        if let Some(count) = self.open.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&ino);
            }
        }
        self.forget();
    }

    /// The file of this name.
    pub fn find(&self, path: &str) -> Result<Ino, Errno> {
        if self.now.folders.contains(path) {
            return Err(Errno::Kind);
        }
        self.now.files.get(path).copied().ok_or(Errno::NotFound)
    }

    /// Renames a file, replacing what had the new name.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        self.find(from)?;
        self.parent(to)?;
        if self.now.folders.contains(to) {
            return Err(Errno::Kind);
        }
        if from != to {
            self.change(Change::Rename(from.into(), to.into()));
            self.forget();
        }
        Ok(())
    }

    /// Lets two files change names.
    pub fn swap(&mut self, one: &str, other: &str) -> Result<(), Errno> {
        self.find(one)?;
        self.find(other)?;
        self.change(Change::Swap(one.into(), other.into()));
        Ok(())
    }

    /// Removes a name.
    pub fn unlink(&mut self, path: &str) -> Result<(), Errno> {
        self.find(path)?;
        self.change(Change::Unlink(path.into()));
        self.forget();
        Ok(())
    }

    /// Writes into a file, which grows as needed.
    pub fn write(&mut self, ino: Ino, offset: usize, bytes: &[u8], now_ns: u64) -> Result<(), Errno> {
        let inode = self.inodes.get_mut(&ino).ok_or(Errno::Stale)?;
        let end = offset + bytes.len();
        if inode.now.len() < end {
            inode.now.resize(end, 0);
        }
        inode.now[offset..end].copy_from_slice(bytes);
        inode.clean = false;
        inode.modified_ns = now_ns.wrapping_add(self.ahead_ns);
        Ok(())
    }

    /// Cuts a file, or fills it up with zeros.
    pub fn set_len(&mut self, ino: Ino, len: usize) -> Result<(), Errno> {
        let inode = self.inodes.get_mut(&ino).ok_or(Errno::Stale)?;
        inode.now.resize(len, 0);
        inode.clean = false;
        Ok(())
    }

    /// What a reader of the file sees.
    pub fn bytes(&self, ino: Ino) -> Option<&[u8]> {
        self.inodes.get(&ino).map(|inode| inode.now.as_slice())
    }

    /// What the medium holds of the file.
    pub fn durable_bytes(&self, ino: Ino) -> Option<&[u8]> {
        self.inodes.get(&ino).map(|inode| inode.durable.as_slice())
    }

    /// From now on files are dated so far ahead of the clock, or behind it by wrapping.
    pub const fn set_date(&mut self, ahead_ns: u64) {
        self.ahead_ns = ahead_ns;
    }

    /// When the file was last written, by the date of then.
    pub fn modified_ns(&self, ino: Ino) -> u64 {
        self.inodes.get(&ino).map_or(0, |inode| inode.modified_ns)
    }

    /// Turns one bit of a file over, on the medium too.
    pub fn rot(&mut self, ino: Ino, bit: usize) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            for bytes in [&mut inode.now, &mut inode.durable] {
                if let Some(byte) = bytes.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
        }
    }

    /// Names directly below a folder, in order, each with its file, or `None` for a folder.
    pub fn list(&self, folder: &str) -> Result<Vec<(Name, Option<Ino>)>, Errno> {
        if !self.now.folders.contains(folder) {
            return Err(Errno::NotFound);
        }
        let below = |path: &&Name| parent(path) == Some(folder);
        let folders = self.now.folders.iter().filter(below).map(|path| (path.clone(), None));
        let files = self.now.files.iter().filter(|(path, _)| below(path)).map(|(path, ino)| (path.clone(), Some(*ino)));
        let mut names: Vec<_> = folders.chain(files).collect();
        names.sort();
        Ok(names)
    }

    /// Every file with its name, in order of names.
    pub fn all(&self) -> impl Iterator<Item = (&str, Ino)> {
        self.now.files.iter().map(|(path, ino)| (&**path, *ino))
    }

    /// Bytes that the file takes.
    pub fn allocated_bytes(&self, ino: Ino) -> u64 {
        self.bytes(ino).map_or(0, |bytes| bytes.len().next_multiple_of(PAGE_BYTES) as u64)
    }

    /// Bytes that all files take, those without a name but open included.
    pub fn used_bytes(&self) -> u64 {
        self.inodes.values().map(|inode| inode.now.len().next_multiple_of(PAGE_BYTES) as u64).sum()
    }

    /// Changes of names that are not on the medium yet.
    pub fn journal_len(&self) -> usize {
        self.journal.len()
    }

    /// Puts the first `changes` of the journal and the bytes of files that `chosen` names on the medium.
    pub fn flush(&mut self, changes: usize, mut chosen: impl FnMut(Ino) -> bool) {
        for change in self.journal.drain(..changes.min(self.journal.len())) {
            self.durable.apply(&change);
        }
        for (ino, inode) in self.inodes.iter_mut().filter(|(ino, inode)| !inode.clean && chosen(**ino)) {
            let _ = ino;
            inode.durable.clone_from(&inode.now);
            inode.clean = true;
        }
        self.forget();
    }

    /// The processes died: every open is closed, nothing else is lost.
    pub fn process_death(&mut self) {
        self.open.clear();
        self.forget();
    }

    /// The power failed: of what was not flushed each sector and each name survives or not. With `ordered` the journal's
    /// changes survive up to one of them, as in journalling file systems; otherwise any of them may be missing.
    pub fn power_loss(&mut self, ordered: bool, rng: &mut Rng) {
        self.open.clear();
        let journal = std::mem::take(&mut self.journal);
        let kept = rng.index(journal.len() + 1);
        for (place, change) in journal.iter().enumerate() {
            if if ordered { place < kept } else { rng.chance(500) } {
                self.durable.apply(change);
            }
        }
        self.now = self.durable.clone();
        for inode in self.inodes.values_mut().filter(|inode| !inode.clean) {
            inode.lose_sectors(rng);
        }
        self.forget();
    }

    fn parent(&self, path: &str) -> Result<(), Errno> {
        let parent = parent(path).ok_or(Errno::NotFound)?;
        if self.now.folders.contains(parent) { Ok(()) } else { Err(Errno::NotFound) }
    }

    fn change(&mut self, change: Change) {
        self.now.apply(&change);
        self.journal.push(change);
    }

    /// Drops files that no name, no open and no surviving name leads to.
    fn forget(&mut self) {
        if self.journal.is_empty() || self.inodes.len() > self.now.files.len() {
            let named: BTreeSet<Ino> = self.now.files.values().chain(self.durable.files.values()).copied().collect();
            let pending =
                |ino: &Ino| self.journal.iter().any(|change| matches!(change, Change::Link(_, of) if of == ino));
            let open = &self.open;
            self.inodes.retain(|ino, _| named.contains(ino) || open.contains_key(ino) || pending(ino));
        }
    }
}

impl Inode {
    /// Each unflushed sector is as it was on the medium or as it was written; the length is one of the two.
    fn lose_sectors(&mut self, rng: &mut Rng) {
        let style = rng.below(4);
        let all = self.now.len().max(self.durable.len());
        let prefix = rng.index(all + 1);
        let mut after = self.durable.clone();
        let len = if rng.chance(700) { self.now.len() } else { self.durable.len() };
        after.resize(len, 0);
        for start in (0..len).step_by(SECTOR_BYTES) {
            let survives = match style {
                0 => false,
                1 => true,
                2 => start < prefix,
                _ => rng.chance(500),
            };
            let end = (start + SECTOR_BYTES).min(len).min(self.now.len());
            if survives && start < end {
                after[start..end].copy_from_slice(&self.now[start..end]);
            }
        }
        self.now.clone_from(&after);
        self.durable = after;
        self.clean = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Files {
        Files::new(&[Name::from("/disk")])
    }

    #[test]
    fn a_renamed_file_is_durable_only_after_a_flush() {
        let mut files = tree();
        let ino = files.create("/disk/a", 1).unwrap();
        files.write(ino, 0, &[7; 5000], 1).unwrap();
        files.rename("/disk/a", "/disk/b").unwrap();
        files.close(ino);
        assert_eq!(files.used_bytes(), 8192);

        let mut killed = files.clone();
        killed.process_death();
        assert_eq!(killed.find("/disk/b"), Ok(ino));

        let mut flushed = files.clone();
        flushed.flush(2, |_| true);
        flushed.power_loss(true, &mut Rng::new(1));
        assert_eq!(flushed.bytes(ino).unwrap(), [7; 5000]);
        assert_eq!(flushed.find("/disk/b"), Ok(ino));

        // Names and sectors survive or not, each for itself.
        let after = |seed| {
            let mut files = files.clone();
            files.power_loss(true, &mut Rng::new(seed));
            let names: Vec<_> = files.all().map(|(path, _)| Name::from(path)).collect();
            let kept = files.bytes(ino).map(|bytes| bytes.iter().filter(|byte| **byte == 7).count());
            (names, kept)
        };
        let all: BTreeSet<_> = (0..200).map(after).collect();
        for names in [vec![], vec![Name::from("/disk/a")], vec![Name::from("/disk/b")]] {
            assert!(all.iter().any(|(seen, _)| *seen == names), "{names:?}");
        }
        assert!(all.iter().any(|(_, kept)| kept.is_some_and(|kept| kept > 0 && kept < 5000)), "torn");
    }

    #[test]
    fn a_file_without_a_name_lives_until_it_is_closed() {
        let mut files = tree();
        let ino = files.create("/disk/a", 1).unwrap();
        files.flush(1, |_| true);
        files.unlink("/disk/a").unwrap();
        files.flush(1, |_| true);
        assert!(files.write(ino, 0, b"x", 2).is_ok());
        files.close(ino);
        assert_eq!(files.bytes(ino), None);
        assert_eq!(files.open("/disk/a"), Err(Errno::NotFound));
    }

    #[test]
    fn folders_must_exist_and_are_listed() {
        let mut files = tree();
        assert_eq!(files.create("/disk/d/a", 1), Err(Errno::NotFound));
        files.make_folder("/disk/d").unwrap();
        assert_eq!(files.make_folder("/disk/d"), Err(Errno::Exists));
        let ino = files.create("/disk/d/a", 1).unwrap();
        assert_eq!(files.list("/disk").unwrap(), [(Name::from("/disk/d"), None)]);
        assert_eq!(files.list("/disk/d").unwrap(), [(Name::from("/disk/d/a"), Some(ino))]);
        assert_eq!(files.unlink("/disk/d"), Err(Errno::Kind));
    }
}

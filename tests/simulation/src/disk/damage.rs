//! Damage to files at rest.

use super::faults::Kind;
use super::files::{Ino, Name};
use super::{Disk, State};

impl Disk {
    /// Gives each kind of damage its chance; returns how many files were hit. And now and then the date jumps.
    pub fn damage(&self) -> u32 {
        let state = &mut *self.lock();
        if state.faults.strikes(Kind::DateJump, &mut state.rng) {
            // To years that files may have, or to any that a broken clock gives.
            let most_ns = if state.rng.chance(700) { 500 * 365 * 86_400_000_000_000 } else { u64::MAX };
            state.files.set_date(state.rng.below(most_ns));
        }
        let mut hit = 0;
        for kind in [Kind::RotAtRest, Kind::FileLost, Kind::FilesSwapped, Kind::FileCut] {
            if state.faults.strikes(kind, &mut state.rng) {
                hit += u32::from(state.inflict(kind));
            }
        }
        hit
    }
}

impl State {
    /// Any file with a name.
    pub(super) fn any_file(&mut self) -> Option<Ino> {
        let all: Vec<Ino> = self.files.all().map(|(_, ino)| ino).collect();
        self.rng.pick(&all).copied()
    }

    /// Any published block.
    fn any_block(&mut self) -> Option<(Name, Ino)> {
        let blocks = self.files.all().filter(|(path, _)| path.ends_with(".blk"));
        let blocks: Vec<_> = blocks.map(|(path, ino)| (Name::from(path), ino)).collect();
        self.rng.pick(&blocks).cloned()
    }

    /// A block of the same key in another namespace.
    fn twin(&mut self, path: &str) -> Option<Name> {
        let is_twin = |other: &&str| *other != path && file_name(other) == file_name(path);
        let twins: Vec<&str> = self.files.all().map(|(path, _)| path).filter(is_twin).collect();
        self.rng.pick(&twins).map(|path| Name::from(*path))
    }

    fn inflict(&mut self, kind: Kind) -> bool {
        let Some((path, ino)) = self.any_block() else { return false };
        let len = self.files.bytes(ino).map_or(0, <[u8]>::len);
        match kind {
            Kind::RotAtRest => {
                let bit = self.rng.index(8 * len);
                self.files.rot(ino, bit);
                true
            }
            Kind::FileLost => self.files.unlink(&path).is_ok(),
            Kind::FileCut => {
                let shorter = self.rng.index(len);
                self.files.set_len(ino, shorter).is_ok()
            }
            _ => {
                // The hardest to tell apart is the block of the same key in another namespace.
                let twin = if self.rng.chance(900) { self.twin(&path) } else { None };
                let Some(other) = twin.or_else(|| self.any_block().map(|(path, _)| path)) else { return false };
                path != other && self.files.swap(&path, &other).is_ok()
            }
        }
    }
}

fn file_name(path: &str) -> Option<&str> {
    path.rsplit('/').next()
}

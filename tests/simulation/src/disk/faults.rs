//! What can go wrong on a disk, how often in this seed, and how often it did.

use crate::rng::Rng;

macro_rules! kinds {
    ($(#[doc = $text:literal] $kind:ident = $weight:literal,)*) => {
        /// Kinds of faults that strike single operations or files.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $(#[doc = $text] $kind,)*
        }

        /// Every kind, with the rate per thousand operations at which it strikes at most.
        const KINDS: &[(Kind, u32)] = &[$((Kind::$kind, $weight),)*];
    };
}

kinds! {
    /// A write is reported done and nothing was written.
    WriteLost = 60,
    /// A write is reported done and only some of its sectors were written.
    WriteTorn = 60,
    /// A write is reported done and went into another file.
    WriteMisdirected = 40,
    /// A write arrives a second time, later.
    WriteDuplicated = 80,
    /// A write turns a bit over on its way.
    WriteRot = 60,
    /// A write fails half-way with EIO.
    WriteError = 60,
    /// A write fails half-way with ENOSPC.
    NoSpace = 60,
    /// A read fails with EIO.
    ReadError = 60,
    /// A read finds a file that ends early, and says so.
    ReadShort = 60,
    /// A read is reported done and filled only its first part.
    ReadTruncated = 60,
    /// A read gives what the file held before its last write.
    ReadStale = 80,
    /// A read gives another file's bytes.
    ReadMisdirected = 60,
    /// A read turns a bit over on its way.
    ReadRot = 80,
    /// A file cannot be opened (EMFILE).
    OpenError = 40,
    /// A file cannot be closed without an error.
    CloseError = 30,
    /// A rename fails with EIO and was not done.
    RenameError = 50,
    /// A rename fails with EIO and was done.
    RenameUnsure = 40,
    /// A rename is reported done and was not.
    RenameLost = 30,
    /// A file cannot be removed.
    RemoveError = 80,
    /// A directory cannot be made or listed.
    FolderError = 60,
    /// The operation takes up to a hundred thousand times as long: half a minute at most.
    Slow = 100,
    /// The operation never ends.
    Hang = 25,
    /// A finished operation is told late, and after later ones.
    ToldLate = 150,
    /// A bit of a file at rest turns over.
    RotAtRest = 120,
    /// A file disappears.
    FileLost = 40,
    /// Two files change places.
    FilesSwapped = 300,
    /// A file is cut.
    FileCut = 40,
    /// The machine's date jumps, to any time before or after: files say so.
    DateJump = 100,
}

/// Number of kinds.
pub const KIND_COUNT: usize = KINDS.len();

impl Kind {
    /// Every kind.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|(kind, _)| *kind)
    }

    /// Whether the device tells the truth: what it reports done is done, what it failed it says so, and files stay as they are.
    pub const fn is_honest(self) -> bool {
        use Kind::*;
        matches!(
            self,
            WriteError
                | NoSpace
                | ReadError
                | OpenError
                | CloseError
                | RenameError
                | RemoveError
                | FolderError
                | Slow
                | Hang
                | ToldLate
                | DateJump
        )
    }

    /// Whether it can leave a file, or bytes in one, that no answer of the device tells of.
    pub const fn is_untold(self) -> bool {
        matches!(self, Self::WriteMisdirected | Self::WriteDuplicated | Self::RenameLost | Self::FileCut)
    }
}

/// The faults of one seed: which kinds, how often each, how often so far.
#[derive(Clone, Debug)]
pub struct Faults {
    per_mille: [u32; KIND_COUNT],
    struck: [u64; KIND_COUNT],
}

impl Faults {
    /// No fault ever.
    pub const fn none() -> Self {
        Self { per_mille: [0; KIND_COUNT], struck: [0; KIND_COUNT] }
    }

    /// Draws kinds and rates. Each seed gets a few kinds only: faults that mask each other would otherwise hide what one
    /// alone shows. One seed in eight gets none, so that the quiet paths stay walked.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut faults = Self::none();
        let share = [0, 60, 60, 120, 120, 250, 250, 600][rng.index(8)];
        let honest = rng.chance(250);
        for (rate, (kind, most)) in faults.per_mille.iter_mut().zip(KINDS) {
            if rng.chance(share) && (kind.is_honest() || !honest) {
                *rate = if rng.chance(500) {
                    rng.skewed(u64::from(*most)) as u32
                } else {
                    rng.between(1, u64::from(*most)) as u32
                };
            }
        }
        faults
    }

    /// This kind never strikes.
    pub fn leave_out(&mut self, kind: Kind) {
        self.per_mille[kind as usize] = 0;
    }

    /// Whether a fault of this kind strikes now; counted.
    pub fn strikes(&mut self, kind: Kind, rng: &mut Rng) -> bool {
        let strikes = self.per_mille[kind as usize] > 0 && rng.chance(self.per_mille[kind as usize]);
        self.struck[kind as usize] += u64::from(strikes);
        strikes
    }

    /// Whether only honest kinds can strike, see [`Kind::is_honest`].
    pub fn are_honest(&self) -> bool {
        self.per_mille.iter().zip(KINDS).all(|(rate, (kind, _))| *rate == 0 || kind.is_honest())
    }

    /// From now on nothing goes wrong; the counts stay.
    pub fn cease(&mut self) {
        self.per_mille = [0; KIND_COUNT];
    }

    /// How often each kind struck.
    pub fn struck(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        KINDS.iter().zip(self.struck).map(|((kind, _), times)| (*kind, times))
    }
}

/// What a whole directory goes through for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weather {
    /// Nothing special.
    Fair,
    /// No operation makes progress.
    Hanging,
    /// Every operation fails with EIO.
    Failing,
    /// No file can grow.
    Full,
    /// Nothing can be written, renamed, removed.
    ReadOnly,
    /// The root is not there: an unmounted disk.
    Gone,
}

impl Weather {
    /// Every weather but fair.
    pub const FOUL: [Self; 5] = [Self::Hanging, Self::Failing, Self::Full, Self::ReadOnly, Self::Gone];
}

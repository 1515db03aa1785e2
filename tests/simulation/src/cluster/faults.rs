//! What can go wrong between nodes and their bucket, and in it.

use crate::rng::Rng;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $most:literal,)*) => {
        /// A kind of fault. The number is the most that it may strike, out of a thousand times.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        const KINDS: &[(Kind, u32)] = &[$((Kind::$name, $most),)*];

        impl Kind {
            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

kinds! {
    /// Answered late, up to minutes.
    Slow = 200,
    /// Neither done nor answered.
    Hang = 60,
    /// Not there, though it is: a read of a segment.
    NotFound = 30,
    /// Not there, though it is: a read of the log, or of a snapshot.
    LogNotFound = 300,
    /// Exists, though it does not.
    Exists = 60,
    /// 500, and not done.
    ServerError = 150,
    /// 503, and not done.
    SlowDown = 150,
    /// The connection breaks before anything is done.
    Reset = 150,
    /// Done, and answered by a 500.
    DoneServerError = 100,
    /// Done, and the connection breaks.
    DoneReset = 100,
    /// Done, and never answered.
    DoneHang = 60,
    /// The connection breaks, and it is done much later.
    DoneLate = 60,
    /// A body that ends early.
    ShortBody = 60,
    /// A body that breaks off.
    BrokenBody = 100,
    /// A body that stops coming.
    StalledBody = 60,
    /// A byte of a segment is another.
    WrongByte = 60,
    /// Bytes of another place, said to be of the right one.
    OtherBytes = 60,
    /// Another range than was asked for, and said so.
    OtherRange = 60,
    /// What was written is not listed for a while.
    StaleList = 100,
    /// What was deleted is listed for a while.
    GhostList = 300,
    /// A listing breaks off.
    BrokenList = 100,
    /// A segment is deleted behind all backs.
    Vanish = 20,
    /// A segment is overwritten behind all backs.
    Overwrite = 20,
}

/// Number of kinds.
pub const KIND_COUNT: usize = KINDS.len();

impl Kind {
    /// Every kind.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|(kind, _)| *kind)
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

    /// Draws kinds and rates. Each seed gets a few kinds only; one in eight gets none.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut faults = Self::none();
        let share = [0, 60, 120, 120, 250, 250, 400, 600][rng.index(8)];
        for (rate, (_, most)) in faults.per_mille.iter_mut().zip(KINDS) {
            if rng.chance(share) {
                *rate = rng.skewed(u64::from(*most)) as u32;
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
        let rate = self.per_mille[kind as usize];
        let strikes = rate > 0 && rng.chance(rate);
        self.struck[kind as usize] += u64::from(strikes);
        strikes
    }

    /// From now on nothing goes wrong; the counts stay.
    pub const fn cease(&mut self) {
        self.per_mille = [0; KIND_COUNT];
    }

    /// How often each kind struck.
    pub fn struck(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        Kind::all().zip(self.struck)
    }
}

/// What the way between one node and the bucket goes through for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Nothing special.
    Fair,
    /// Nothing arrives.
    Cut,
    /// Requests arrive, answers do not.
    Deaf,
    /// Connections break at once.
    Refused,
    /// The bucket tells to slow down.
    Throttled,
    /// Everything takes seconds.
    Crawling,
}

impl Weather {
    /// Every weather but fair.
    pub const FOUL: [Self; 5] = [Self::Cut, Self::Deaf, Self::Refused, Self::Throttled, Self::Crawling];
}

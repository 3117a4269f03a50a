//! Numbers and names of rule ABI v1. All integers are little-endian.

/// What `rulecast_abi` answers.
pub const VERSION: u32 = 1;

/// Bytes of the scratch buffer that [`export!`](crate::export) sets aside.
pub const SCRATCH: usize = 128 * 1024;

/// Longest value of an attribute, in bytes. More is a fault, never "absent".
pub const MAX_VALUE: usize = 16 * 1024;

/// Most endpoints of a set.
pub const MAX_ENDPOINTS: usize = 65_536;

/// Most rules of one evaluation.
pub const MAX_RULES: usize = 1024;

/// What the cell behind `rulecast_rule` holds while no rule is at work.
pub const NO_RULE: u32 = u32::MAX;

/// The set of a request that has no endpoints.
pub const NO_SET: u32 = 0;

/// Phases that a policy may be for.
pub const PHASES: &[&str] = &["authenticate", "authorize", "limit", "route", "mutate"];

/// The slot in an answer's list of attributes that stands for the draw.
pub const DRAW_SLOT: u16 = u16::MAX;

/// The attribute that stands for the draw.
pub const DRAW: &str = "draw";

/// Name of the custom section with the manifest.
pub const MANIFEST_SECTION: &str = "rulecast.manifest";

/// Name of the one module that imports may come from.
pub const IMPORT_MODULE: &str = "rulecast";

/// How a call of the guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// As asked.
    Ok = 0,
    /// A rule or a table is refused; the answer says why.
    Refused = 1,
    /// The input is malformed.
    Malformed = 2,
    /// A rule that was not committed.
    UnknownRule = 3,
    /// A set of endpoints that the guest does not hold.
    UnknownSet = 4,
    /// The answer does not fit the scratch buffer.
    TooLarge = 5,
}

impl Status {
    /// By its number.
    #[inline]
    pub fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Ok,
            1 => Self::Refused,
            2 => Self::Malformed,
            3 => Self::UnknownRule,
            4 => Self::UnknownSet,
            5 => Self::TooLarge,
            _ => return None,
        })
    }
}

/// A result of the guest in one integer: status in bits 56..64, offset into the scratch
/// buffer in bits 32..56, length in bits 0..32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// How it ended.
    pub status: Status,
    /// Where the answer begins in the scratch buffer.
    pub offset: u32,
    /// Bytes of the answer.
    pub len: u32,
}

impl Packed {
    /// Without an answer.
    #[inline]
    pub const fn empty(status: Status) -> Self {
        Self { status, offset: 0, len: 0 }
    }

    /// As the guest returns it.
    #[inline]
    pub fn pack(self) -> i64 {
        let status = u64::from(self.status as u8) << 56;
        let offset = u64::from(self.offset & 0xff_ffff) << 32;
        (status | offset | u64::from(self.len)) as i64
    }

    /// What the guest returned; `None` for an unknown status.
    #[inline]
    pub fn unpack(value: i64) -> Option<Self> {
        let value = value as u64;
        Some(Self {
            status: Status::from_u8((value >> 56) as u8)?,
            offset: ((value >> 32) & 0xff_ffff) as u32,
            len: value as u32,
        })
    }

    /// The bytes it speaks of; `None` outside of the scratch buffer.
    #[inline]
    pub fn slice(self, scratch: &[u8]) -> Option<&[u8]> {
        let start = usize::try_from(self.offset).ok()?;
        let len = usize::try_from(self.len).ok()?;
        scratch.get(start..start.checked_add(len)?)
    }
}

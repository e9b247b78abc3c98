//! What instructions are once they are read: registers by number, one variant for each kind of work.

pub(crate) use super::kinds::*;

/// A register and the class that it is kept in. Registers of 8, 16 and 32 bits share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Pred(u32),
    R32(u32),
    R64(u32),
    /// `_`: what is written is dropped.
    Sink,
}

/// A source of up to 32 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum S32 {
    R(u32),
    I(u32),
}

/// A source of 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum S64 {
    R(u32),
    I(u64),
}

/// A source of either width, as its instruction's type says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Narrow(S32),
    Wide(S64),
    Sink,
}

/// A predicate, or its opposite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) pred: u32,
    pub(crate) negated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    Bf16,
    F32,
    F64,
    F16x2,
    Bf16x2,
    U16x2,
    S16x2,
    Pred,
}

impl Type {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::U64 | Self::S64 | Self::F64 => 8,
            _ => 4,
        }
    }

    pub(crate) fn wide(self) -> bool {
        self.bytes() == 8
    }

    pub(crate) fn signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(crate) fn float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    /// Of any block of the cluster.
    SharedCluster,
    Local,
    Param,
}

/// A base and a number of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) base: Source,
    pub(crate) offset: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Lane,
    Warp,
    ClusterRank,
    ClusterSize,
    ClusterId,
    Clusters,
    Sm,
    Sms,
    Timer,
    LanesBelow,
    DynamicShared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Idx,
    Up,
    Down,
    Bfly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

/// Elements of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
    E4m3,
    E5m2,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// `small`: 0, or the bits of the result (16 or 8), whose sources are extended with their signs if `signed`.
    A32 {
        k: K32,
        d: u32,
        s: [S32; 4],
        small: u8,
        signed: bool,
        /// Subnormal FP32 sources and results are zeros.
        flush: bool,
    },
    A64 {
        k: K64,
        d: u32,
        s: [S64; 3],
        place: [S32; 2],
    },
    Shift64 {
        k: Shift,
        d: u32,
        a: S64,
        by: S32,
    },
    MulWide {
        d: u32,
        a: S32,
        b: S32,
        add: Option<S64>,
        signed: bool,
    },
    /// Bits of 64 to 32: population and leading zeros.
    Count64 {
        d: u32,
        a: S64,
        leading: bool,
    },
    Convert {
        to: Type,
        from: Type,
        rounding: Rounding,
        saturate: bool,
        d: Register,
        a: Source,
    },
    Setp {
        cmp: Comparison,
        of: Type,
        d: u32,
        other: Option<u32>,
        a: Source,
        b: Source,
        with: Option<(Bool, Guard)>,
    },
    /// 32 bits of ones or FP32 1.0 where the comparison holds.
    Set {
        cmp: Comparison,
        of: Type,
        d: u32,
        float: bool,
        a: Source,
        b: Source,
    },
    Selp {
        d: Register,
        a: Source,
        b: Source,
        p: Guard,
    },
    Logic {
        k: Option<Bool>,
        d: u32,
        a: Guard,
        b: Guard,
    },
    PredImmediate {
        d: u32,
        value: bool,
    },
    Special {
        d: Register,
        which: Special,
    },
    /// The parts of a register, lowest first, `bits` each.
    Unpack {
        d: Vec<Register>,
        a: Source,
        bits: u32,
    },
    Pack {
        d: Register,
        a: Vec<Source>,
        bits: u32,
    },
    Load {
        space: Space,
        at: Address,
        of: Type,
        d: Vec<Register>,
    },
    Store {
        space: Space,
        at: Address,
        of: Type,
        a: Vec<Source>,
    },
    Atom {
        space: Space,
        at: Address,
        of: Type,
        k: Atomic,
        d: Option<Register>,
        a: Vec<Source>,
    },
    /// From a space's addresses to generic ones, or back.
    Cvta {
        space: Space,
        to_space: bool,
        d: Register,
        a: Source,
    },
    MapRank {
        d: u32,
        a: S32,
        rank: S32,
    },
    Bra {
        to: u32,
    },
    /// Into a function whose code begins at `to`; lanes come back to `back`.
    Call {
        to: u32,
        back: u32,
        function: u32,
        copies: Vec<(u32, u32, u32)>,
    },
    /// What a function gave, to its caller: from, to, bytes of a lane's own memory.
    Given {
        copies: Vec<(u32, u32, u32)>,
    },
    /// `function`: whose; `u32::MAX`: the kernel's end.
    Ret {
        function: u32,
    },
    Exit,
    Trap,
    Bar {
        id: S32,
        threads: Option<S32>,
        arrive: bool,
    },
    /// A barrier whose threads all learn what holds of all, of any, or of how many.
    BarReduce {
        k: Vote,
        d: Register,
        id: S32,
        threads: Option<S32>,
        a: Guard,
    },
    BarWarp {
        mask: S32,
    },
    ClusterArrive,
    ClusterWait,
    Shuffle {
        k: Shuffle,
        d: u32,
        valid: Option<u32>,
        a: S32,
        b: S32,
        c: S32,
        mask: S32,
    },
    Vote {
        k: Vote,
        d: Register,
        a: Guard,
        mask: S32,
    },
    Redux {
        k: K32,
        d: u32,
        a: S32,
        mask: S32,
    },
    ActiveMask {
        d: u32,
    },
    Elect {
        d: Register,
        p: u32,
        mask: S32,
    },
    Mma {
        of: Element,
        d: [u32; 4],
        a: [S32; 4],
        b: [S32; 2],
        c: [S32; 4],
    },
    /// A from shared memory by a descriptor, or from registers.
    Wgmma {
        of: (Element, Element),
        columns: u32,
        d: Vec<u32>,
        a: Result<S64, [S32; 4]>,
        b: S64,
        add: Guard,
    },
    LoadMatrix {
        d: Vec<u32>,
        at: Address,
        transposed: bool,
    },
    StoreMatrix {
        a: Vec<S32>,
        at: Address,
        transposed: bool,
    },
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u32,
        read: Option<S32>,
    },
    CopyCommit,
    CopyWait {
        pending: u32,
    },
    /// For all, those that no group has among them.
    CopyWaitAll,
    CopyArrive {
        at: Address,
    },
    BarrierInit {
        at: Address,
        count: S32,
    },
    BarrierArrive {
        at: Address,
        cluster: bool,
        expect: Option<S32>,
    },
    BarrierTest {
        at: Address,
        parity: S32,
        p: u32,
    },
    StoreAsync {
        at: Address,
        of: Type,
        a: Vec<Source>,
        barrier: S32,
    },
    CopyBulk {
        to: Address,
        from: Address,
        bytes: S32,
        barrier: Address,
    },
    CopyBox {
        to: Address,
        map: S64,
        at: [S32; 2],
        barrier: Address,
        blocks: Option<S32>,
    },
    StoreBox {
        map: S64,
        at: [S32; 2],
        from: Address,
    },
    Nop,
    /// Read, but not known how to run.
    Unknown(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<Guard>,
    pub(crate) op: Op,
    pub(crate) line: u32,
}

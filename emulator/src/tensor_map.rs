//! What `cuTensorMapEncodeTiled` puts into the 128 bytes of a tensor map, and copies of the tensor memory accelerator read from there.
//!
//! NVIDIA's own encoding is not public; nobody but the driver and the GPU reads it, so that another one does.

/// Which box of a tensor in memory a copy moves, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Where the tensor begins.
    pub address: u64,
    /// `CUtensorMapDataType`.
    pub data_type: u32,
    /// Dimensions, 1 to 5; what is beyond in the arrays is 0.
    pub rank: u32,
    /// Elements along each dimension, the innermost first.
    pub dims: [u64; 5],
    /// Bytes from one element to the next along each dimension but the innermost.
    pub strides: [u64; 4],
    /// Elements of a box along each dimension.
    pub box_dims: [u32; 5],
    /// Every how manyeth element is taken along each dimension.
    pub element_strides: [u32; 5],
    /// `CUtensorMapInterleave`: 0 none.
    pub interleave: u32,
    /// `CUtensorMapSwizzle`: 0 none, 1 to 3 of 32, 64, 128 bytes.
    pub swizzle: u32,
    /// `CUtensorMapL2promotion`.
    pub l2_promotion: u32,
    /// `CUtensorMapFloatOOBfill`: 0 zeros, 1 NaN.
    pub oob_fill: u32,
}

const MAGIC: [u8; 8] = *b"emulated";

/// Of the bytes before it, so that bytes that are no map, or a map overwritten in part, are found.
fn check_sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

impl TensorMap {
    /// Bytes of an element; `None` of types that are packed into fewer than 8 bits.
    pub fn element_bytes(&self) -> Option<usize> {
        Some(match self.data_type {
            0 => 1,
            1 | 6 | 9 => 2,
            2 | 3 | 7 | 10..=12 => 4,
            4 | 5 | 8 => 8,
            _ => return None,
        })
    }

    /// The documented rules of `cuTensorMapEncodeTiled`; the error says which is broken.
    pub fn check(&self) -> Result<(), String> {
        let rank = self.rank as usize;
        let require = |holds: bool, rule: &str| if holds { Ok(()) } else { Err(format!("{rule}: {self:?}")) };
        require(self.data_type <= 15, "a known type")?;
        require((1..=5).contains(&rank), "rank 1 to 5")?;
        require(self.interleave <= 2 && self.l2_promotion <= 3 && self.oob_fill <= 1, "known options")?;
        require(self.swizzle <= 6, "a known swizzle")?;
        require(self.interleave == 0 || rank >= 3, "interleaved tensors have 3 dimensions or more")?;
        require(self.interleave != 2 || self.swizzle == 1, "interleaving by 32 bytes is swizzled by 32 bytes")?;
        // 16 elements of 4 or 6 bits, padded to 16 bytes in shared memory.
        let padded = matches!(self.data_type, 14 | 15);
        let alignment = if self.interleave == 2 || padded { 32 } else { 16 };
        require(self.address != 0 && self.address.is_multiple_of(alignment), "an aligned address")?;
        require(self.dims[..rank].iter().all(|dim| (1..=1 << 32).contains(dim)), "dimensions from 1 to 2^32")?;
        let strides = &self.strides[..rank - 1];
        require(
            strides.iter().all(|stride| stride.is_multiple_of(alignment) && *stride < 1 << 40),
            "strides are multiples of 16 bytes, or 32, below 2^40",
        )?;
        require(self.box_dims[..rank].iter().all(|side| (1..=256).contains(side)), "sides of the box from 1 to 256")?;
        require(self.element_strides[..rank].iter().all(|step| (1..=8).contains(step)), "element strides from 1 to 8")?;
        let inner = u64::from(self.box_dims[0]);
        let inner_bytes = match self.element_bytes() {
            Some(bytes) => inner * bytes as u64,
            None if padded => {
                require(inner == 128 && self.dims[0].is_multiple_of(128), "padded types come 128 at a time")?;
                require(matches!(self.swizzle, 0 | 3..=6), "padded types are swizzled by 128 bytes, or not at all")?;
                128
            }
            None => {
                require(self.dims[0].is_multiple_of(2), "two elements of 4 bits a byte")?;
                inner / 2
            }
        };
        if self.interleave == 0 {
            require(inner_bytes.is_multiple_of(16), "rows of the box are multiples of 16 bytes")?;
            let span = [u64::MAX, 32, 64, 128, 128, 128, 128][self.swizzle as usize];
            require(inner_bytes <= span, "rows of the box are no longer than the swizzle's")?;
        }
        require(self.oob_fill == 0 || matches!(self.data_type, 6..=12), "NaN fills floats alone")
    }

    /// What copies of boxes here are made for: matrices of whole elements, with zeros outside.
    pub fn plain_matrix(&self) -> Result<(), String> {
        let plain = self.rank == 2
            && self.interleave == 0
            && self.swizzle <= 3
            && self.oob_fill == 0
            && self.element_strides[..2] == [1, 1]
            && self.element_bytes().is_some();
        if plain { Ok(()) } else { Err(format!("this tensor map is not known here: {self:?}")) }
    }

    /// The bytes that a kernel takes as a `const __grid_constant__` parameter.
    pub fn to_bytes(&self) -> [u8; 128] {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend(MAGIC);
        bytes.extend(self.address.to_le_bytes());
        bytes.extend(self.dims.iter().flat_map(|dim| dim.to_le_bytes()));
        bytes.extend(self.strides.iter().flat_map(|stride| stride.to_le_bytes()));
        bytes.extend(self.box_dims.iter().flat_map(|side| (*side as u16).to_le_bytes()));
        bytes.extend(self.element_strides.iter().map(|step| *step as u8));
        let options = [self.data_type, self.rank, self.interleave, self.swizzle, self.l2_promotion, self.oob_fill]
            .map(|n| n as u8);
        bytes.extend(options);
        bytes.resize(120, 0);
        bytes.extend(check_sum(&bytes).to_le_bytes());
        bytes.try_into().expect("120 and 8 bytes")
    }

    /// What [`Self::to_bytes`] was called of; `None` of any other bytes.
    pub fn from_bytes(bytes: &[u8; 128]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes[..8] != MAGIC || word(120) != check_sum(&bytes[..120]) {
            return None;
        }
        let half = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let byte = |at: usize| u32::from(bytes[at]);
        let map = Self {
            address: word(8),
            dims: std::array::from_fn(|i| word(16 + 8 * i)),
            strides: std::array::from_fn(|i| word(56 + 8 * i)),
            box_dims: std::array::from_fn(|i| half(88 + 2 * i)),
            element_strides: std::array::from_fn(|i| byte(98 + i)),
            data_type: byte(103),
            rank: byte(104),
            interleave: byte(105),
            swizzle: byte(106),
            l2_promotion: byte(107),
            oob_fill: byte(108),
        };
        map.check().is_ok().then_some(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FP8 codes, 64 x 128 at a time.
    const CODES: TensorMap = TensorMap {
        address: 0x7F00_0000_0000,
        data_type: 0,
        rank: 2,
        dims: [7168, 2112, 0, 0, 0],
        strides: [7168, 0, 0, 0],
        box_dims: [128, 64, 0, 0, 0],
        element_strides: [1, 1, 0, 0, 0],
        interleave: 0,
        swizzle: 3,
        l2_promotion: 3,
        oob_fill: 0,
    };

    #[test]
    fn bytes_there_and_back() {
        let all = TensorMap {
            rank: 5,
            data_type: 9,
            dims: [1 << 32, 2, 3, 4, 5],
            strides: [16, (1 << 40) - 16, 48, 64],
            box_dims: [64, 256, 1, 2, 3],
            element_strides: [1, 2, 3, 4, 8],
            oob_fill: 1,
            ..CODES
        };
        for map in [CODES, all] {
            map.check().unwrap();
            assert_eq!(TensorMap::from_bytes(&map.to_bytes()), Some(map));
        }
    }

    #[test]
    fn boxes_of_others_are_told() {
        CODES.plain_matrix().unwrap();
        for other in [
            TensorMap { rank: 3, dims: [7168, 2112, 2, 0, 0], ..CODES },
            TensorMap { element_strides: [1, 2, 0, 0, 0], ..CODES },
            TensorMap { data_type: 7, oob_fill: 1, ..CODES },
            TensorMap { swizzle: 4, ..CODES },
            TensorMap { data_type: 13, ..CODES },
        ] {
            assert!(other.plain_matrix().is_err(), "{other:?}");
        }
    }

    #[test]
    fn other_bytes_are_no_map() {
        assert_eq!(TensorMap::from_bytes(&[0; 128]), None);
        for at in 0..128 {
            let mut bytes = CODES.to_bytes();
            bytes[at] ^= 1;
            assert_eq!(TensorMap::from_bytes(&bytes), None, "byte {at}");
        }
    }

    #[test]
    fn the_documented_rules() {
        for (bad, word) in [
            (TensorMap { address: 0x1008, ..CODES }, "address"),
            (TensorMap { address: 0, ..CODES }, "address"),
            (TensorMap { rank: 0, ..CODES }, "rank"),
            (TensorMap { rank: 6, ..CODES }, "rank"),
            (TensorMap { dims: [0, 1, 0, 0, 0], ..CODES }, "dimensions"),
            (TensorMap { dims: [(1 << 32) + 1, 1, 0, 0, 0], ..CODES }, "dimensions"),
            (TensorMap { strides: [7160, 0, 0, 0], ..CODES }, "strides"),
            (TensorMap { strides: [1 << 40, 0, 0, 0], ..CODES }, "strides"),
            (TensorMap { box_dims: [128, 0, 0, 0, 0], ..CODES }, "sides"),
            (TensorMap { box_dims: [128, 257, 0, 0, 0], ..CODES }, "sides"),
            (TensorMap { box_dims: [24, 64, 0, 0, 0], ..CODES }, "multiples of 16"),
            (TensorMap { box_dims: [144, 64, 0, 0, 0], ..CODES }, "no longer"),
            (TensorMap { box_dims: [48, 64, 0, 0, 0], swizzle: 1, ..CODES }, "no longer"),
            (TensorMap { data_type: 9, swizzle: 2, ..CODES }, "no longer"),
            (TensorMap { element_strides: [1, 0, 0, 0, 0], ..CODES }, "element strides"),
            (TensorMap { oob_fill: 1, ..CODES }, "NaN"),
            (TensorMap { interleave: 1, ..CODES }, "interleaved"),
        ] {
            let why = bad.check().unwrap_err();
            assert!(why.contains(word), "{word:?} is not in {why:?}");
        }
    }
}

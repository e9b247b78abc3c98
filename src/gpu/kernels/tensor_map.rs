//! Tensor maps: how the tensor memory accelerator (sm_90 and later) finds a box of a matrix in memory.

use cudarc::driver::sys;

use crate::error::{Error, Result};
use crate::gpu::device::memory::{Span, driver};

/// Element types, as the copy sees them: it moves bits, and fills with zeros what lies outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "a table of the driver's"))]
pub(crate) enum MapElement {
    U8,
    Bf16,
    F16,
    F32,
}

/// Order of the 16-byte pieces of a row in shared memory: rows of this many bytes are permuted against bank conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "a table of the driver's"))]
pub(crate) enum Swizzle {
    None,
    Bytes32,
    Bytes64,
    Bytes128,
}

/// A row-major matrix in device memory, and the box of it that one copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixMap {
    pub(crate) element: MapElement,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Elements from one row to the next.
    pub(crate) row_stride: usize,
    pub(crate) box_rows: usize,
    pub(crate) box_cols: usize,
    pub(crate) swizzle: Swizzle,
}

impl MapElement {
    fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    fn raw(self) -> sys::CUtensorMapDataType {
        match self {
            Self::U8 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            Self::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Self::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Self::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        }
    }
}

impl Swizzle {
    /// Bytes of the longest row of a box that it takes.
    fn row_bytes(self) -> usize {
        match self {
            Self::None => usize::MAX,
            Self::Bytes32 => 32,
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }

    fn raw(self) -> sys::CUtensorMapSwizzle {
        match self {
            Self::None => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            Self::Bytes32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            Self::Bytes64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            Self::Bytes128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        }
    }
}

impl MatrixMap {
    /// The driver's rules for `cuTensorMapEncodeTiled` (documented; of two dimensions, not interleaved), with the numbers that
    /// break them: the driver itself says `CUDA_ERROR_INVALID_VALUE` and no more.
    pub(crate) fn check(&self, operand: &str, address: u64, bytes: usize) -> Result<()> {
        let Self { element, rows, cols, row_stride, box_rows, box_cols, swizzle } = *self;
        let refuse = |found: String, rule: &str, remedy: &str| Err(Error::shape(operand, found, rule, remedy));
        if !address.is_multiple_of(16) {
            return Err(Error::Alignment {
                operand: operand.to_string(),
                address,
                required: 16,
                remedy: "start the buffer at the allocation, or at a multiple of that many bytes".into(),
            });
        }
        if [rows, cols].iter().any(|&side| side == 0 || side as u64 > 1 << 32) {
            return refuse(
                format!("{rows} x {cols}"),
                "must be 1 to 2^32 rows and columns",
                "leave an empty matrix out",
            );
        }
        let stride = row_stride.checked_mul(element.bytes()).filter(|stride| (*stride as u64) < 1 << 40);
        let Some(stride) = stride.filter(|stride| stride.is_multiple_of(16) && row_stride >= cols) else {
            return refuse(
                format!("{row_stride} elements of {} bytes from one row of {cols} to the next", element.bytes()),
                "must be a multiple of 16 bytes below 2^40, and no shorter than a row",
                "pad the rows",
            );
        };
        let extent = (rows - 1).checked_mul(stride).and_then(|last| last.checked_add(cols * element.bytes()));
        if extent.is_none_or(|extent| extent > bytes) {
            return refuse(
                format!("{bytes} bytes"),
                &format!("must hold {rows} rows of {cols} elements, {stride} bytes apart"),
                "allocate the length the matrix asks for",
            );
        }
        let row_bytes = box_cols.saturating_mul(element.bytes());
        let sides = [box_rows, box_cols].iter().all(|side| (1..=256).contains(side));
        if !sides || !row_bytes.is_multiple_of(16) || row_bytes > swizzle.row_bytes() {
            return refuse(
                format!("a box of {box_rows} x {box_cols} elements of {} bytes, {swizzle:?} swizzle", element.bytes()),
                "must be 1 to 256 rows and columns, of a multiple of 16 bytes and no more than the swizzle a row",
                "report it: a launch of this crate asked for it",
            );
        }
        Ok(())
    }

    /// The 128 bytes that a kernel takes as a `const __grid_constant__` parameter. They hold the address: the memory must stay where
    /// it is as long as work that uses the map is enqueued.
    pub(crate) fn encode(&self, operand: &str, memory: &Span<'_>) -> Result<sys::CUtensorMap> {
        self.check(operand, memory.address, memory.bytes)?;
        let sizes = [self.cols as u64, self.rows as u64];
        let strides = [(self.row_stride * self.element.bytes()) as u64];
        let (box_sizes, steps) = ([self.box_cols as u32, self.box_rows as u32], [1, 1]);
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: all arrays have the lengths that rank 2 asks for and outlive the call, which writes `map` and keeps none of
        // them; the address is only stored.
        let result = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                self.element.raw(),
                2,
                memory.address as *mut std::ffi::c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                box_sizes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                self.swizzle.raw(),
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        result.result().map_err(|e| driver(&format!("encoding a tensor map of {operand}: {self:?}"), e))?;
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::libraries;
    use crate::gpu::lt::keep_loaded;

    /// FP8 codes of B of DeepSeek-V3's first product, 64 x 128 at a time.
    const CODES: MatrixMap = MatrixMap {
        element: MapElement::U8,
        rows: 2112,
        cols: 7168,
        row_stride: 7168,
        box_rows: 64,
        box_cols: 128,
        swizzle: Swizzle::Bytes128,
    };
    const BYTES: usize = 2112 * 7168;

    #[test]
    fn the_drivers_rules_are_ours() {
        CODES.check("B", 0x1000, BYTES).unwrap();
        MatrixMap {
            element: MapElement::F32,
            rows: 1,
            cols: 1,
            row_stride: 4,
            box_rows: 1,
            box_cols: 4,
            swizzle: Swizzle::None,
        }
        .check("scales", 16, 4)
        .unwrap();
        let most = MatrixMap { rows: 1, cols: 1 << 32, row_stride: 1 << 32, box_rows: 256, ..CODES };
        most.check("B", 16, 1 << 32).unwrap();
        for (bad, word) in [
            (MatrixMap { rows: 0, ..CODES }, "0 x 7168"),
            (MatrixMap { cols: 0, ..CODES }, "2112 x 0"),
            (MatrixMap { rows: (1 << 32) + 1, ..CODES }, "4294967297"),
            (MatrixMap { row_stride: 7160, cols: 7160, ..CODES }, "7160"),
            (MatrixMap { row_stride: 7152, ..CODES }, "7152"),
            (MatrixMap { row_stride: usize::MAX, ..CODES }, "below 2^40"),
            (MatrixMap { row_stride: 1 << 40, rows: 1, ..CODES }, "below 2^40"),
            (MatrixMap { rows: 2113, ..CODES }, "15138816 bytes"),
            (MatrixMap { rows: 1 << 32, row_stride: (1 << 40) - 16, ..CODES }, "15138816 bytes"),
            (MatrixMap { box_rows: 0, ..CODES }, "0 x 128"),
            (MatrixMap { box_rows: 257, ..CODES }, "257"),
            (MatrixMap { box_cols: 24, ..CODES }, "64 x 24"),
            (MatrixMap { box_cols: 144, ..CODES }, "Bytes128"),
            (MatrixMap { box_cols: 48, swizzle: Swizzle::Bytes32, ..CODES }, "Bytes32"),
            (
                MatrixMap {
                    element: MapElement::Bf16,
                    row_stride: 3584,
                    cols: 3584,
                    swizzle: Swizzle::Bytes64,
                    ..CODES
                },
                "Bytes64",
            ),
            (MatrixMap { box_cols: usize::MAX, swizzle: Swizzle::None, ..CODES }, "box"),
        ] {
            let error = bad.check("B", 0x1000, BYTES).unwrap_err();
            assert!(matches!(error, Error::Shape { .. }) && error.to_string().contains(word), "{bad:?}: {error}");
        }
        assert!(matches!(CODES.check("B", 0x1008, BYTES), Err(Error::Alignment { required: 16, .. })));
    }

    /// What our rules let through, the driver takes; it needs no GPU for it, but its library.
    #[test]
    fn the_driver_takes_what_the_rules_let_through() {
        if let Err(reason) = libraries::driver_available(keep_loaded) {
            println!("skipped: {reason}");
            return;
        }
        // The driver asks for a current context (observed: driver 580).
        let context = match cudarc::driver::CudaContext::new(0) {
            Ok(context) => context,
            Err(reason) => return println!("skipped: no context on GPU 0: {reason}"),
        };
        context.bind_to_thread().unwrap();
        let memory = |bytes| Span::unguarded(0x7F00_0000_0000, bytes);
        let widths = [(MapElement::U8, 128), (MapElement::Bf16, 64), (MapElement::F16, 64), (MapElement::F32, 32)];
        for (element, box_cols) in widths {
            for swizzle in [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128] {
                let box_cols = box_cols.min(swizzle.row_bytes() / element.bytes());
                let map = MatrixMap { element, box_cols, swizzle, ..CODES };
                let encoded = map.encode("B", &memory(BYTES * element.bytes())).unwrap();
                assert!(encoded.opaque.iter().any(|word| *word != 0), "{map:?}");
            }
        }
    }
}

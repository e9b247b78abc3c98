//! What products derive from a [`QuantMatrix`] once, beside its codes: repeated scales, and codes times block scales as plain
//! numbers.
//!
//! Whoever writes the matrix brings both up to date, in place and in stream order, so that a captured graph does so at each
//! launch. A graph captured before they were made does not: from a capture on that writes the matrix, each use makes them again.

use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{CodeFormat, DType, Extent, Scheme};
use crate::gpu::device::memory::{DeviceBuffer, Span};
use crate::gpu::device::stream::Queue;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::BlockCodes;
use crate::gpu::matrix::QuantMatrix;

/// Whether B keeps its values (codes times block scales) as plain numbers beside its codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KeptWeights {
    /// Codes and scales only.
    #[default]
    Nothing,
    /// [`QuantMatrix::keep_dequantized`] has made them in this type: BF16, or F16 for NVFP4 and MXFP4.
    Dequantized(DType),
}

/// What a matrix has beside codes and scales.
#[derive(Default)]
pub(crate) struct Derived {
    /// The 128x128 scales repeated for every row, in 1x128 order.
    repeated: OnceLock<DeviceBuffer>,
    kept: OnceLock<Kept>,
}

/// The values of a [`QuantMatrix`] without its FP32 scales, row-major and packed.
struct Kept {
    dtype: DType,
    values: DeviceBuffer,
}

impl Derived {
    pub(super) fn bytes(&self) -> usize {
        self.kept.get().map_or(0, |kept| kept.values.len()) + self.repeated.get().map_or(0, DeviceBuffer::len)
    }
}

impl QuantMatrix {
    /// Makes `code[i, j] * block_scale[i, block]` once as a packed `rows x cols` matrix of `dtype`, and keeps it beside the
    /// codes: products with this B by [`Formulation::DequantizedBf16`](crate::gpu::Formulation) then dequantize no weights. Those by
    /// [`Formulation::SmallM`](crate::gpu::Formulation), on sm_90 planned up to 64 rows where there are 12.6 million weights or more (25.2 of MXFP8), elsewhere and for fewer up to 16, read the codes all the same: weights that multiply no more
    /// rows need not be kept (but MXFP8 in E5M2). For more rows kept values come first, and above 8 where k is below 2048 and weights are fewer.
    ///
    /// BF16 for most products, where it is exact; F16 for NVFP4 and MXFP4 weights with plain F16 activations, or of NVFP4
    /// products into F16 output. It costs `2 * rows * cols` bytes ([`QuantMatrix::device_bytes`]), four times the codes of NVFP4 and MXFP4. A quantizer
    /// that writes the matrix writes the values too. Allocates; waits for nothing. A second call in the same type does nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a scheme without block scales, another type than these, a matrix that keeps another type
    /// already, or inside graph capture; [`Error::Driver`] if there is not enough memory.
    pub fn keep_dequantized(&self, handle: &Handle, dtype: DType) -> Result<()> {
        check_kept(self.scheme(), dtype)?;
        // Two handles may come to it at once.
        let _turn = handle.queue().turn();
        if self.derived.kept.get().is_none() {
            handle.refuse_capture("keeping a matrix dequantized")?;
            let bytes = self.rows() * self.cols() * dtype.bytes();
            let kept = Kept { dtype, values: DeviceBuffer::zeros(handle.queue(), bytes)? };
            self.write_kept(handle, &kept)?;
            // Nobody else sets it: whoever is on this GPU needs the turn, and others cannot read the codes.
            let _ = self.derived.kept.set(kept);
        }
        match self.kept() {
            KeptWeights::Dequantized(found) if found != dtype => Err(Error::unsupported(
                format!("keeping a {} matrix dequantized to {dtype}", self.scheme()),
                format!("it keeps {found} already"),
                "call forget_dequantized first",
            )),
            _ => Ok(()),
        }
    }

    /// Drops what [`QuantMatrix::keep_dequantized`] made; the memory is freed in stream order, after every use of it. Plans for a B
    /// that keeps values no longer take it; captured graphs go on with the values that they had, whatever is written to the matrix.
    pub fn forget_dequantized(&mut self) {
        self.derived.kept.take();
    }

    /// What [`QuantMatrix::keep_dequantized`] made.
    pub fn kept(&self) -> KeptWeights {
        self.derived.kept.get().map_or(KeptWeights::Nothing, |kept| KeptWeights::Dequantized(kept.dtype))
    }

    /// The values, if they are kept in this type.
    pub(crate) fn kept_values(&self, dtype: DType) -> Option<&DeviceBuffer> {
        self.derived.kept.get().filter(|kept| kept.dtype == dtype).map(|kept| &kept.values)
    }

    /// The scales in 1x128 order, if [`QuantMatrix::repeat_scales`] made them.
    pub(crate) fn repeated_scales(&self) -> Option<&DeviceBuffer> {
        self.derived.repeated.get()
    }

    /// Length of the repeated scales: one for each row and K block, in 1x128 order.
    pub(crate) fn repeated_len(rows: usize, cols: usize) -> usize {
        ScaleLayout::Vec128.len(rows, Extent::Elements(128).groups(cols))
    }

    /// Makes the second scale buffer of [`Formulation::RepeatedScales`](crate::gpu::Formulation), once. Allocates then.
    pub(crate) fn repeat_scales(&self, handle: &Handle) -> Result<()> {
        if self.derived.repeated.get().is_some() {
            return Ok(());
        }
        let _turn = handle.queue().turn();
        handle.refuse_capture("making repeated scales")?;
        if self.derived.repeated.get().is_none() {
            let bytes = Self::repeated_len(self.rows(), self.cols()) * size_of::<f32>();
            let repeated = DeviceBuffer::zeros(handle.queue(), bytes)?;
            self.write_repeated(handle, &repeated)?;
            // As for kept values.
            let _ = self.derived.repeated.set(repeated);
        }
        Ok(())
    }

    /// Brings what is derived up to date where a launched graph may have written the matrix. Before each use of it; allocates
    /// nothing.
    pub(crate) fn freshen(&self, handle: &Handle) -> Result<()> {
        if self.written_by_graphs() { self.derive_again(handle) } else { Ok(()) }
    }

    /// Brings what is derived up to date after the matrix was written on this handle. Allocates nothing.
    pub(crate) fn derive_again(&self, handle: &Handle) -> Result<()> {
        if self.derived.repeated.get().is_none() && self.derived.kept.get().is_none() {
            return Ok(());
        }
        let _turn = handle.queue().turn();
        self.derived.repeated.get().map_or(Ok(()), |repeated| self.write_repeated(handle, repeated))?;
        self.derived.kept.get().map_or(Ok(()), |kept| self.write_kept(handle, kept))
    }

    fn write_repeated(&self, handle: &Handle, repeated: &DeviceBuffer) -> Result<()> {
        let queue = handle.queue();
        let order = queue.order();
        let (source, target) = (self.read(&order)?, repeated.write(&order)?);
        handle.kernels().repeat_scales(queue, &source.scales, self.rows(), self.cols(), &target)
    }

    fn write_kept(&self, handle: &Handle, kept: &Kept) -> Result<()> {
        let queue = handle.queue();
        let order = queue.order();
        let (source, target) = (self.read_in_order(&order)?, kept.values.write(&order)?);
        self.dequantize_codes(handle, queue, &source.codes, &source.block_scales, &target, kept.dtype)
    }

    /// Enqueues `values[i, j] = code[i, j] * block_scale[i, block]`, packed. The spans are this matrix's codes and block scales.
    pub(crate) fn dequantize_codes(
        &self,
        handle: &Handle,
        queue: &Queue,
        codes: &Span<'_>,
        block_scales: &Span<'_>,
        values: &Span<'_>,
        dtype: DType,
    ) -> Result<()> {
        let (scheme, rows, cols) = (self.scheme(), self.rows(), self.cols());
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let order = self.code_order();
        let q = BlockCodes { scheme, rows, cols, order, codes, block_scales, scales: None };
        handle.kernels().dequantize_blocks(queue, &q, values, cols, dtype)
    }
}

/// Refuses values that no product would read: of a scheme without block scales, or in a type that does not hold them.
pub(crate) fn check_kept(scheme: Scheme, dtype: DType) -> Result<()> {
    let what = || format!("keeping a {scheme} matrix dequantized to {dtype}");
    if scheme.spec().block.is_none() {
        return Err(Error::unsupported(
            what(),
            "only products of block-scaled matrices (nvfp4, nvfp4-row, mxfp8, mxfp4) are computed from dequantized values",
            "leave it as it is",
        ));
    }
    match dtype {
        DType::Bf16 => Ok(()),
        DType::F16 if scheme.spec().format == CodeFormat::E2M1 => Ok(()),
        _ => Err(Error::unsupported(
            what(),
            "codes times block scales are exact in bf16, and f16 is for nvfp4, nvfp4-row and mxfp4 weights",
            "keep them as bf16; as f16 for weights of f16 activations, or of nvfp4 products into f16",
        )),
    }
}

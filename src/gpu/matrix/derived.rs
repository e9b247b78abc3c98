//! Block-scaled matrices as plain numbers: codes times block scales, without the second-level scales. Kept beside the codes
//! of a weight by [`QuantMatrix::keep_dequantized`], or made in a plan's scratch memory by each call.

use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::memory::{DeviceBytes, DeviceBytesMut, LaunchStream, Span, driver};
use crate::gpu::gemm::desc::{KeptWeights, check_kept};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::BlockCodes;
use crate::gpu::matrix::{KeptValues, QuantMatrix};

impl QuantMatrix {
    /// Makes `code[i, j] * block_scale[i, block]` once as a packed `rows x cols` matrix of `dtype`, and keeps it beside the
    /// codes: products with this B by [`Formulation::DequantizedBf16`](crate::gpu::Formulation) then dequantize no weights.
    ///
    /// BF16 for most products, where it is exact; F16 for NVFP4 weights with plain F16 activations, or of NVFP4 products into
    /// F16 output. It costs `2 * rows * cols` bytes ([`QuantMatrix::device_bytes`]), four times the codes of NVFP4. Writing to
    /// the matrix drops it, so do not while a captured graph reads it. Allocates; waits for nothing. A second call in the same
    /// type does nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a scheme without block scales, another type than these, a matrix that keeps another type
    /// already, or inside graph capture; [`Error::Driver`] if there is not enough memory.
    pub fn keep_dequantized(&self, handle: &Handle, dtype: DType) -> Result<()> {
        check_kept(self.scheme(), dtype)?;
        if self.kept.get().is_none() {
            handle.refuse_capture("keeping a matrix dequantized")?;
            let bytes = self.rows() * self.cols() * dtype.bytes();
            let mut values = handle
                .stream()
                .alloc_zeros::<u8>(bytes.max(1))
                .map_err(|e| driver(&format!("allocating {bytes} bytes of dequantized values"), e))?;
            {
                let (codes, block_scales, mut target) =
                    (self.codes(), self.block_scales(), DeviceBytesMut::from(&mut values));
                let stream = handle.launch_stream();
                let order = stream.order();
                let (codes, block_scales) = (codes.at(order), block_scales.at(order));
                self.dequantize_codes(handle, stream, &codes, &block_scales, &target.at(order), dtype)?;
            }
            // Two threads may both come here; the values are equal, so the second buffer is simply dropped.
            let _ = self.kept.set(KeptValues { dtype, values });
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

    /// Drops what [`QuantMatrix::keep_dequantized`] made, in stream order. Plans for a B that keeps values no longer take it.
    pub fn forget_dequantized(&mut self) {
        self.kept.take();
    }

    /// What [`QuantMatrix::keep_dequantized`] made.
    pub fn kept(&self) -> KeptWeights {
        self.kept.get().map_or(KeptWeights::Nothing, |kept| KeptWeights::Dequantized(kept.dtype))
    }

    /// The values, if they are kept in this type.
    pub(crate) fn kept_values(&self, dtype: DType) -> Option<DeviceBytes<'_>> {
        self.kept.get().filter(|kept| kept.dtype == dtype).map(|kept| DeviceBytes::from(&kept.values))
    }

    /// Enqueues `values[i, j] = code[i, j] * block_scale[i, block]`, packed. The spans are this matrix's codes and block scales.
    pub(crate) fn dequantize_codes(
        &self,
        handle: &Handle,
        stream: &LaunchStream,
        codes: &Span<'_>,
        block_scales: &Span<'_>,
        values: &Span<'_>,
        dtype: DType,
    ) -> Result<()> {
        let (scheme, rows, cols) = (self.scheme(), self.rows(), self.cols());
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let q = BlockCodes { scheme, rows, cols, codes, block_scales, scales: None };
        handle.kernels().dequantize_blocks(stream, &q, values, cols, dtype)
    }
}

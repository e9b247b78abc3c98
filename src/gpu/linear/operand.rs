//! Operands of a layer's products for any number of tokens: memory for the most, and matrices in the front of it.

use crate::error::{Error, Result};
use crate::format::{DType, Scheme};
use crate::gpu::device::memory::{DeviceBuffer, Span};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::Input;
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, SharedMatrix};

/// Memory for a quantized matrix of at most so many rows and columns.
pub(super) struct Room {
    scheme: Scheme,
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    block_scales: DeviceBuffer,
}

impl Room {
    /// Allocates, and loads the kernels that cast to the scheme.
    pub(super) fn new(handle: &Handle, scheme: Scheme, rows: usize, cols: usize) -> Result<Self> {
        handle.kernels().load_casts(handle.queue(), scheme)?;
        let lengths =
            [scheme.code_bytes(rows, cols), scheme.scale_len(rows, cols) * 4, scheme.block_scale_len(rows, cols)];
        let [codes, scales, block_scales] = DeviceBuffer::zeros_together(handle.queue(), lengths)?;
        Ok(Self { scheme, codes, scales, block_scales })
    }

    /// A matrix in the front of it, in shared memory; what is there stays there. Allocates nothing on the device.
    pub(super) fn matrix(&self, rows: usize, cols: usize) -> Result<QuantMatrix> {
        let scheme = self.scheme;
        let codes = self.codes.part(0..scheme.code_bytes(rows, cols))?;
        let scales = self.scales.part(0..scheme.scale_len(rows, cols) * 4)?;
        let block_scales = self.block_scales.part(0..scheme.block_scale_len(rows, cols))?;
        QuantMatrix::from_parts(scheme, rows, cols, codes, Some(scales), Some(block_scales))
    }

    pub(super) fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.block_scales.len()
    }
}

/// BF16 numbers that a product reads.
pub(super) enum Bf16Form {
    /// Where the caller has them, kept alive; `None` before the first.
    Shared(Option<SharedMatrix>),
    /// Copied, and rounded where they are of another type.
    Own(DeviceBuffer),
}

impl Bf16Form {
    /// For at most so many elements of this type. Allocates where they are to be copied.
    pub(super) fn new(handle: &Handle, dtype: DType, copies: bool, elements: usize) -> Result<Self> {
        if dtype == DType::Bf16 && !copies {
            return Ok(Self::Shared(None));
        }
        Ok(Self::Own(DeviceBuffer::zeros(handle.queue(), elements * DType::Bf16.bytes())?))
    }

    /// Takes the numbers of X. `operand`: what X is, for an error.
    pub(super) fn take(&mut self, handle: &Handle, operand: &str, x: &MatRef<'_>) -> Result<()> {
        match self {
            Self::Shared(shared) => *shared = Some(share(operand, x)?),
            Self::Own(buffer) => round_to_bf16(handle, x, buffer)?,
        }
        Ok(())
    }

    /// The same, and the column sums of each 128 rows of X: in one pass where X is rounded.
    pub(super) fn take_summing(
        &mut self,
        handle: &Handle,
        operand: &str,
        x: &MatRef<'_>,
        sums: &DeviceBuffer,
    ) -> Result<()> {
        let (queue, kernels) = (handle.queue(), handle.kernels());
        if let Self::Shared(_) = self {
            self.take(handle, operand, x)?;
        }
        let order = queue.order();
        let source = x.data().at(&order)?;
        let (input, sums) = (input_of(x, &source), sums.write(&order)?);
        match self {
            Self::Shared(_) => kernels.column_sums(queue, &input, &sums),
            Self::Own(buffer) => kernels.to_bf16_summing(queue, &input, &buffer.write(&order)?, &sums),
        }
    }

    /// What was taken, `rows x cols`.
    pub(super) fn matrix(&self, operand: &str, rows: usize, cols: usize) -> Result<MatRef<'_>> {
        match self {
            Self::Shared(Some(shared)) => shared.matrix(),
            Self::Shared(None) => Err(nothing_there(operand)),
            Self::Own(buffer) => MatRef::new(buffer, DType::Bf16, rows, cols),
        }
    }

    /// Refuses a target in memory of the caller's that is read.
    pub(super) fn check_apart(&self, operand: &str, which: &str, target: &MatMut<'_>) -> Result<()> {
        match self {
            Self::Shared(Some(shared)) => shared.check_apart(operand, which, target),
            _ => Ok(()),
        }
    }

    /// Lets go of what is the caller's.
    pub(super) fn forget(&mut self) {
        if let Self::Shared(shared) = self {
            *shared = None;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Shared(shared) => shared.as_ref().map_or(0, SharedMatrix::bytes),
            Self::Own(buffer) => buffer.len(),
        }
    }
}

/// X's memory, kept alive without a copy.
pub(super) fn share(operand: &str, x: &MatRef<'_>) -> Result<SharedMatrix> {
    x.share().unwrap_or_else(|| {
        Err(Error::unsupported(
            format!("{operand} in memory of others (a cudarc slice, or a bare address)"),
            "it is read again in the backward pass, and nothing would keep it alive until then",
            "hold it in a DeviceBuffer; X may also be kept quantized (KeptInput::Quantized)",
        ))
    })
}

/// X rounded to BF16, packed.
pub(super) fn round_to_bf16(handle: &Handle, x: &MatRef<'_>, to: &mut DeviceBuffer) -> Result<()> {
    let order = handle.queue().order();
    let source = x.data().at(&order)?;
    handle.kernels().to_bf16(handle.queue(), &input_of(x, &source), &to.write(&order)?)
}

fn input_of<'s>(x: &MatRef<'_>, source: &'s Span<'s>) -> Input<'s> {
    Input { x: source, dtype: x.dtype(), rows: x.rows(), cols: x.cols(), row_stride: x.row_stride() }
}

pub(super) fn nothing_there(operand: &str) -> Error {
    Error::unsupported(
        format!("{operand} before anything was written to it"),
        "it is memory that a forward or backward pass fills",
        "call forward_saving_into, or quantize_gradient_into, before",
    )
}

/// X is kept in a form that this layer has no memory for.
pub(super) fn other_form() -> Error {
    Error::unsupported(
        "a saved X in another form than the layer keeps it",
        "the layer has no memory to transpose it in",
        "make it with saved_input of this layer, after with_kept_input",
    )
}

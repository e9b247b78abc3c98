//! What one product reads and writes, and the checks that make enqueuing it safe.

use std::fmt;

use super::attributes::Facts;
use super::{Algo, Layouts, LtHandle, MatmulDesc, MatrixLayout, PointerAttr, PointerMode, ScaleMode, Transpose};
use crate::error::{Error, Result};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

impl Layouts {
    /// M, N, K; an error if the four do not fit together.
    pub(super) fn extents(&self, facts: &Facts) -> Result<(usize, usize, usize)> {
        let turned = |layout: &MatrixLayout, transpose| match transpose {
            Transpose::No => (layout.rows, layout.cols),
            Transpose::Yes => (layout.cols, layout.rows),
        };
        let (m, k) = turned(&self.a, facts.transposes[0]);
        let (inner, n) = turned(&self.b, facts.transposes[1]);
        let is_result = |layout: &MatrixLayout| (layout.rows, layout.cols) == (m, n);
        match inner == k && is_result(&self.c) && is_result(&self.d) {
            true => Ok((m, n, k)),
            false => Err(Error::shape(
                "the matrices of a product",
                self.to_string(),
                "must be M x K, K x N, M x N, M x N",
                "this is a bug of scaled-gemm: please report it",
            )),
        }
    }
}

impl fmt::Display for Layouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, layout) in [("A", &self.a), ("B", &self.b), ("C", &self.c), ("D", &self.d)] {
            let MatrixLayout { data_type, rows, cols, ld, .. } = layout;
            write!(f, "{separator}{name} {data_type:?} {rows} x {cols} ld {ld}")?;
            separator = ", ";
        }
        Ok(())
    }
}

impl MatmulDesc {
    /// The least bytes that a pointer must have behind it.
    pub(super) fn pointer_bytes(&self, pointer: PointerAttr, layouts: &Layouts, k: usize) -> usize {
        match pointer {
            PointerAttr::AScale => self.facts.scale_modes[0].bytes(layouts.d.rows, k),
            PointerAttr::BScale => self.facts.scale_modes[1].bytes(layouts.d.cols, k),
            PointerAttr::DScale | PointerAttr::AmaxD => size_of::<f32>(),
            PointerAttr::Bias => layouts.d.rows * self.facts.bias.unwrap_or(layouts.d.data_type).bits() / 8,
        }
    }

    fn pointer_alignment(&self, pointer: PointerAttr) -> u64 {
        match pointer {
            PointerAttr::AScale if self.facts.scale_modes[0] == ScaleMode::Scalar => self.library.scalar_alignment,
            PointerAttr::BScale if self.facts.scale_modes[1] == ScaleMode::Scalar => self.library.scalar_alignment,
            PointerAttr::AScale | PointerAttr::BScale | PointerAttr::Bias => 16,
            PointerAttr::DScale => self.library.scalar_alignment,
            PointerAttr::AmaxD => 4,
        }
    }
}

/// The memory behind the descriptor's pointers, as declared by [`MatmulDesc::expect_pointers`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Pointers<'a> {
    pub(crate) a_scale: Option<&'a Span<'a>>,
    pub(crate) b_scale: Option<&'a Span<'a>>,
    /// FP8 D: the factor that D is multiplied by before it is rounded.
    pub(crate) d_scale: Option<&'a Span<'a>>,
    /// FP8 D: the largest |D| before that factor, set (not accumulated).
    pub(crate) amax_d: Option<&'a Span<'a>>,
    pub(crate) bias: Option<&'a Span<'a>>,
}

/// Alpha and beta; the descriptor must have been told the place ([`PointerMode`]).
#[derive(Clone, Copy)]
pub(crate) enum Factors<'a> {
    /// As the host knows them now.
    Host { alpha: f32, beta: f32 },
    /// Two FP32 numbers on the device, alpha first, read when the product runs.
    Device(&'a Span<'a>),
}

/// One product, ready to be enqueued.
pub(crate) struct MatmulCall<'a> {
    pub(crate) handle: &'a LtHandle,
    pub(crate) desc: &'a mut MatmulDesc,
    pub(crate) layouts: &'a Layouts,
    pub(crate) algo: &'a Algo,
    pub(crate) factors: Factors<'a>,
    pub(crate) a: &'a Span<'a>,
    pub(crate) b: &'a Span<'a>,
    /// `None`: D itself.
    pub(crate) c: Option<&'a Span<'a>>,
    pub(crate) d: &'a Span<'a>,
    pub(crate) pointers: Pointers<'a>,
    pub(crate) workspace: &'a Span<'a>,
    pub(crate) stream: &'a Queue,
}

/// `span` has at least `bytes` bytes at a multiple of `alignment`.
pub(super) fn require(operand: &str, span: &Span<'_>, bytes: usize, alignment: u64) -> Result<()> {
    if span.bytes < bytes {
        let found = format!("{} bytes", span.bytes);
        return Err(Error::shape(operand, found, format!("must be at least {bytes} bytes"), "pass the whole buffer"));
    }
    if bytes > 0 && !span.address.is_multiple_of(alignment) {
        let remedy = "start at the beginning of an allocation, or copy".to_string();
        return Err(Error::Alignment { operand: operand.into(), address: span.address, required: alignment, remedy });
    }
    Ok(())
}

impl MatmulCall<'_> {
    /// Every length and address that the library will use; sets the descriptor's pointers.
    pub(super) fn prepare(&mut self) -> Result<()> {
        let (layouts, pointers) = (self.layouts, self.pointers);
        let (_, _, k) = layouts.extents(&self.desc.facts)?;
        require("cuBLASLt's A", self.a, layouts.a.bytes, 16)?;
        require("cuBLASLt's B", self.b, layouts.b.bytes, 16)?;
        require("cuBLASLt's D", self.d, layouts.d.bytes, 16)?;
        require("workspace", self.workspace, self.algo.workspace_bytes(), 256)?;
        let (place, reads_c) = match self.factors {
            Factors::Host { beta, .. } => (PointerMode::Host, beta != 0.0),
            Factors::Device(factors) => {
                require("alpha and beta", factors, 2 * size_of::<f32>(), 16)?;
                (PointerMode::Device, true)
            }
        };
        if self.desc.facts.pointer_mode != place {
            return Err(Error::shape(
                "alpha and beta",
                format!("in the {place:?}'s memory"),
                format!("must be in the {:?}'s, as the descriptor says", self.desc.facts.pointer_mode),
                "this is a bug of scaled-gemm: please report it",
            ));
        }
        if reads_c {
            if layouts.c.data_type != layouts.d.data_type {
                let beta = match self.factors {
                    Factors::Host { beta, .. } => beta.to_string(),
                    Factors::Device(_) => "known to the device only".to_string(),
                };
                return Err(Error::dtype(
                    "C",
                    format!("{:?}", layouts.c.data_type),
                    format!("differs from D's {:?} while beta is {beta}", layouts.d.data_type),
                    "accumulate only into the output's own type",
                ));
            }
            require("cuBLASLt's C", self.c.unwrap_or(self.d), layouts.c.bytes, 16)?;
        }
        if self.desc.facts.epilogue.has_bias() && self.desc.pointers[PointerAttr::Bias as usize].is_none() {
            let found = format!("{:?}", self.desc.facts.epilogue);
            return Err(Error::shape("epilogue", found, "adds a bias, and none was declared", "declare the bias"));
        }
        let given = [pointers.a_scale, pointers.b_scale, pointers.d_scale, pointers.amax_d, pointers.bias];
        for (pointer, span) in PointerAttr::ALL.into_iter().zip(given) {
            match (span, self.desc.pointers[pointer as usize]) {
                (Some(span), Some(_)) => {
                    let bytes = self.desc.pointer_bytes(pointer, layouts, k);
                    require(pointer.words(), span, bytes, self.desc.pointer_alignment(pointer))?;
                    self.desc.set_pointer(pointer, span.address)?;
                }
                (None, None) => {}
                (span, _) => {
                    let found = if span.is_some() { "given" } else { "not given" };
                    let rule = "must be given exactly if the plan was made with it";
                    return Err(Error::shape(pointer.words(), found, rule, "plan again with or without it"));
                }
            }
        }
        Ok(())
    }
}

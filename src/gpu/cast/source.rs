//! Where the numbers of a cast come from.

use super::norm::RmsNormArgs;
use crate::error::{Error, Result};
use crate::format::{CodeFormat, DType};
use crate::gpu::device::memory::{DeviceBuffer, DeviceBytes, DeviceBytesMut, Span};
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{CastMatrix, MatRef, VecRef};

/// What a cast reads: a plain matrix; codes with scales, whose values are `fl(code * scale)`; or what a producer computes of a plain
/// matrix, which is not stored. Of each also chosen rows.
pub struct CastSource<'a> {
    pub(super) values: Values<'a>,
    pub(super) index: Option<&'a RowIndex>,
}

pub(super) enum Values<'a> {
    Plain(&'a MatRef<'a>),
    Coded(&'a CastMatrix),
    Swiglu(SwigluSource<'a>),
    Activated(&'a MatRef<'a>, SourceActivation),
    Normed {
        x: &'a MatRef<'a>,
        rstd: VecRef<'a>,
        weight: VecRef<'a>,
    },
    /// Its factors are found first.
    Norm(RmsNormArgs<'a>),
}

/// x of SwiGLU, both halves.
#[derive(Clone, Copy)]
pub(super) enum GatedInput<'a> {
    Plain(&'a MatRef<'a>),
    Coded(&'a CastMatrix),
}

impl GatedInput<'_> {
    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Plain(x) => x.rows(),
            Self::Coded(q) => q.rows(),
        }
    }

    pub(super) fn cols(&self) -> usize {
        match self {
            Self::Plain(x) => x.cols(),
            Self::Coded(q) => q.cols(),
        }
    }
}

/// A function of each element, in FP32, in the arithmetic of [`reference`](crate::reference)'s function of the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceActivation {
    /// [`reference::silu`](crate::reference::silu).
    Silu,
    /// [`reference::gelu`](crate::reference::gelu), the exact form.
    Gelu,
    /// [`reference::gelu_tanh`](crate::reference::gelu_tanh).
    GeluTanh,
}

named!(SourceActivation, "activation of a source", Silu => "silu", Gelu => "gelu", GeluTanh => "gelu-tanh");

/// `y = silu(l) * r * w` of x = `[l | r]`, rows x 2H: the source of a cast of rows x H, in the arithmetic of
/// [`reference::swiglu`](crate::reference::swiglu). A cast per channel reads y rounded to BF16, all others y as it is.
pub struct SwigluSource<'a> {
    pub(super) x: GatedInput<'a>,
    pub(super) clamp: Option<f32>,
    pub(super) weights: Option<VecRef<'a>>,
    pub(super) experts: Option<DeviceBytes<'a>>,
    pub(super) counts: Option<DeviceBytesMut<'a>>,
}

impl<'a> SwigluSource<'a> {
    /// Without clamp, weights and experts.
    ///
    /// # Errors
    /// [`Error::Shape`] unless x has a multiple of 32 columns.
    pub fn new(x: &'a MatRef<'a>) -> Result<Self> {
        Self::of(GatedInput::Plain(x))
    }

    /// The same of `x = fl(code * scale)`, which [`Handle::swiglu_backward`] reads: activations that were kept in FP8. A cast of the forward
    /// pass refuses it. Scales are not looked at ([`CastMatrix::check_scales`]).
    ///
    /// # Errors
    /// [`Error::Shape`] unless x has a multiple of 32 columns; [`Error::Unsupported`] unless the codes are E4M3 that are not transposed.
    pub fn of_codes(x: &'a CastMatrix) -> Result<Self> {
        if x.scheme().format() != CodeFormat::E4M3 || x.scheme().is_transposed() {
            return Err(Error::unsupported(
                format!("x of SwiGLU in {}", x.scheme()),
                "it is read in e4m3, row by row",
                "cast it back (Handle::cast_back_into), or keep it in e4m3",
            ));
        }
        Self::of(GatedInput::Coded(x))
    }

    fn of(x: GatedInput<'a>) -> Result<Self> {
        if !x.cols().is_multiple_of(32) {
            return Err(Error::shape(
                "x of SwiGLU",
                format!("{} columns", x.cols()),
                "must be a multiple of 32: two halves, each a multiple of 16",
                "pass both halves side by side, padded with zeros",
            ));
        }
        Ok(Self { x, clamp: None, weights: None, experts: None, counts: None })
    }

    /// l at most c, r between -c and c; a NaN stays one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if c is negative or NaN.
    pub fn with_clamp(self, c: f32) -> Result<Self> {
        if c.is_nan() || c < 0.0 {
            return Err(Error::unsupported(
                format!("a clamp of {c} in SwiGLU"),
                "r is bounded by it on both sides, so that it must be at least 0",
                "pass the model's bound, or leave it out",
            ));
        }
        Ok(Self { clamp: Some(c), ..self })
    }

    /// w, one FP32 for each row of x.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] for other vectors.
    pub fn with_weights(self, weights: VecRef<'a>) -> Result<Self> {
        if weights.dtype() != DType::F32 {
            return Err(Error::dtype("weights of SwiGLU", weights.dtype(), "is not f32", "pass one f32 for each row"));
        }
        check_rows("weights of SwiGLU", weights.len(), self.x.rows())?;
        Ok(Self { weights: Some(weights), ..self })
    }

    /// The expert of each row of x, a 32-bit number: a row of a negative one is zeros, and counts nothing. They begin at a multiple of 4 bytes, which the call that reads them asks.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of them.
    pub fn with_experts(self, experts: impl Into<DeviceBytes<'a>>) -> Result<Self> {
        let experts = experts.into();
        if experts.len() != self.x.rows() * 4 {
            return Err(Error::shape(
                "experts of SwiGLU",
                format!("{} bytes", experts.len()),
                format!("must be a 32-bit number for each of the {} rows of x", self.x.rows()),
                "pass one for each row",
            ));
        }
        Ok(Self { experts: Some(experts), ..self })
    }

    /// Three 64-bit numbers that are raised by the elements which the clamp changes: `l > c`, `r > c`, `r < -c`. They begin at a multiple of 8 bytes, which the call that raises them asks.
    ///
    /// They count what is computed: in every cast, also of scales or codes alone; a row that is gathered several times as often, one
    /// that is not gathered never.
    ///
    /// # Errors
    /// [`Error::Shape`] unless they are 24 bytes; [`Error::Unsupported`] without a clamp.
    pub fn with_counts(self, counts: impl Into<DeviceBytesMut<'a>>) -> Result<Self> {
        let counts = counts.into();
        if counts.len() != 24 {
            let found = format!("{} bytes", counts.len());
            return Err(Error::shape("counts of SwiGLU", found, "must be three 64-bit numbers", "pass 24 bytes"));
        }
        if self.clamp.is_none() {
            return Err(Error::unsupported(
                "counting in SwiGLU without a clamp",
                "what is counted is what it changes",
                "set the clamp first",
            ));
        }
        Ok(Self { counts: Some(counts), ..self })
    }
}

fn check_rows(operand: &str, found: usize, rows: usize) -> Result<()> {
    if found == rows {
        return Ok(());
    }
    Err(Error::shape(operand, found.to_string(), format!("must be the {rows} rows of x"), "pass one for each row"))
}

/// That a norm's weight has a factor for each column of x, in FP32 or x's type.
pub(super) fn check_norm_weight(x: &MatRef<'_>, weight: &VecRef<'_>) -> Result<()> {
    if weight.len() != x.cols() {
        return Err(Error::shape(
            "weight of a norm",
            format!("{} elements", weight.len()),
            format!("must be the {} columns of x", x.cols()),
            "pass a factor for each column",
        ));
    }
    if weight.dtype() != DType::F32 && weight.dtype() != x.dtype() {
        let rule = format!("is neither f32 nor {}, x's type", x.dtype());
        return Err(Error::dtype("weight of a norm", weight.dtype(), rule, "convert it to one of them"));
    }
    Ok(())
}

impl<'a> From<SwigluSource<'a>> for CastSource<'a> {
    fn from(source: SwigluSource<'a>) -> Self {
        Self { values: Values::Swiglu(source), index: None }
    }
}

impl<'a> From<RmsNormArgs<'a>> for CastSource<'a> {
    fn from(norm: RmsNormArgs<'a>) -> Self {
        Self { values: Values::Norm(norm), index: None }
    }
}

impl<'a> From<&'a MatRef<'a>> for CastSource<'a> {
    fn from(x: &'a MatRef<'a>) -> Self {
        Self { values: Values::Plain(x), index: None }
    }
}

impl<'a> From<&'a CastMatrix> for CastSource<'a> {
    fn from(q: &'a CastMatrix) -> Self {
        Self { values: Values::Coded(q), index: None }
    }
}

impl<'a> CastSource<'a> {
    /// A function of each element of a plain matrix.
    pub fn activated(x: &'a MatRef<'a>, activation: SourceActivation) -> Self {
        Self { values: Values::Activated(x, activation), index: None }
    }

    /// `y = fl(fl(x * rstd[row]) * weight[column])`: RMSNorm of rows whose factors are known ([`Handle::rms_norm`] finds them), for any number of
    /// casts of one norm. With a residual x is the sum that the norm wrote. x is BF16, F16 or F32, rstd FP32, the weight FP32 or of x's type. A single cast takes
    /// [`RmsNormArgs`] themselves as its source.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] for other vectors.
    pub fn normed(x: &'a MatRef<'a>, rstd: VecRef<'a>, weight: VecRef<'a>) -> Result<Self> {
        if rstd.dtype() != DType::F32 {
            return Err(Error::dtype("factors of a norm", rstd.dtype(), "is not f32", "pass one f32 for each row"));
        }
        check_rows("factors of a norm", rstd.len(), x.rows())?;
        check_norm_weight(x, &weight)?;
        Ok(Self { values: Values::Normed { x, rstd, weight }, index: None })
    }

    /// Row i of the source is row `index[i]` of the matrix, or zeros.
    ///
    /// # Errors
    /// [`Error::Shape`] if the index was made for a matrix of more rows.
    pub fn gathered(self, index: &'a RowIndex) -> Result<Self> {
        let rows = self.matrix_rows();
        match index.of_rows {
            Some(of) if of > rows => Err(Error::shape(
                "row index",
                format!("of a matrix of {of} rows"),
                format!("must be of one of at most {rows}, those of the matrix that is read"),
                "make it for this matrix (RowIndex::new)",
            )),
            _ => Ok(Self { index: Some(index), ..self }),
        }
    }

    /// Rows of the matrix that is read.
    pub(super) fn matrix_rows(&self) -> usize {
        match &self.values {
            Values::Plain(x) | Values::Activated(x, _) | Values::Normed { x, .. } => x.rows(),
            Values::Coded(q) => q.rows(),
            Values::Norm(norm) => norm.x.rows(),
            Values::Swiglu(source) => source.x.rows(),
        }
    }

    /// Rows that the cast has.
    pub fn rows(&self) -> usize {
        self.index.map_or(self.matrix_rows(), RowIndex::len)
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        match &self.values {
            Values::Plain(x) | Values::Activated(x, _) | Values::Normed { x, .. } => x.cols(),
            Values::Coded(q) => q.cols(),
            Values::Norm(norm) => norm.x.cols(),
            Values::Swiglu(source) => source.x.cols() / 2,
        }
    }
}

/// Which row of a matrix each row of a cast is, in device memory: 32-bit numbers, negative for a row of zeros.
pub struct RowIndex {
    data: DeviceBuffer,
    /// The rows of the matrix that it was checked for.
    of_rows: Option<usize>,
}

impl RowIndex {
    /// An index into a matrix of `rows` rows. Allocates; the numbers have been read when it returns.
    ///
    /// # Errors
    /// [`Error::Shape`] for a number that is no row of such a matrix; otherwise as [`Handle::alloc`].
    pub fn new(handle: &Handle, index: &[i32], rows: usize) -> Result<Self> {
        check_numbers(index.iter().copied(), rows)?;
        // As they lie in memory: two's complement.
        let numbers: Vec<u32> = index.iter().map(|row| row.cast_unsigned()).collect();
        Ok(Self { data: handle.upload(&numbers)?, of_rows: Some(rows) })
    }

    /// Numbers in device memory, which may change between launches. Kernels do not say when one is beyond the matrix: its row is zeros, as of a negative one.
    /// [`RowIndex::check`] asks for such numbers.
    ///
    /// # Errors
    /// [`Error::Shape`] if the length is no multiple of 4 bytes; [`Error::Alignment`] unless it begins at a multiple of 4 bytes.
    pub fn from_device(data: DeviceBuffer) -> Result<Self> {
        if !data.len().is_multiple_of(4) {
            let found = format!("{} bytes", data.len());
            return Err(Error::shape("row index", found, "must be whole 32-bit numbers", "pass the whole buffer"));
        }
        if !data.is_empty() && !data.address().is_multiple_of(4) {
            let remedy = "start the buffer at a multiple of 4 bytes".into();
            return Err(Error::Alignment { operand: "row index".into(), address: data.address(), required: 4, remedy });
        }
        Ok(Self { data, of_rows: None })
    }

    /// That every number is below `rows`, those of the matrix that is read, or negative, as [`RowIndex::new`] asks. Ask this of numbers that were written on the
    /// device, where casts would make rows of zeros of others. Copies the numbers to the host, allocates there, and waits for the handle's stream.
    ///
    /// # Errors
    /// [`Error::Shape`], which names the first number that is no row; [`Error::Unsupported`] inside graph capture; [`Error::Driver`] if the copy fails.
    pub fn check(&self, handle: &Handle, rows: usize) -> Result<()> {
        let bytes = handle.read_bytes(&self.data.view())?;
        check_numbers(bytes.as_chunks().0.iter().map(|number| i32::from_le_bytes(*number)), rows)
    }

    /// Rows of the cast.
    pub fn len(&self) -> usize {
        self.data.len() / 4
    }

    /// Whether the cast has none.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    pub(super) fn read<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<Span<'s>> {
        self.data.read(order)
    }
}

/// Refuses a number that is no row of so many, unless it is negative.
fn check_numbers(index: impl Iterator<Item = i32>, rows: usize) -> Result<()> {
    let beyond = |number: i32| usize::try_from(number).is_ok_and(|row| row >= rows);
    let Some((at, row)) = index.enumerate().find(|(_, number)| beyond(*number)) else { return Ok(()) };
    Err(Error::shape(
        "row index",
        format!("{row} at place {at}"),
        format!("must be below {rows}, the rows of the matrix, or negative for a row of zeros"),
        "pass the index of that matrix",
    ))
}

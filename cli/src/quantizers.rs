//! What makes codes, and what is made of them: the quantizers, casts and producers that `bench --quantizers` times.

mod list;

use ndarray::{Array2, ArrayView2};
use scaled_gemm::checkpoint::StoredScheme;
use scaled_gemm::{
    CastRecipe, CastScales, CastScheme, DType, Error, Extent, Fp8Scales, Recipe, Result, Scheme, reference,
};

use crate::target::Target;
pub use list::Coverage;

/// What is computed of a matrix on the way to its codes, and not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Producer {
    /// Nothing.
    Plain,
    /// `silu(l) * r` of `[l | r]`, which has twice the columns, and what it takes beside.
    Swiglu(Gate),
    Activated(Function),
    /// RMSNorm, or that of the sum with a residual, which is written: in one pass where the target is read along rows by the rule of casts,
    /// otherwise in two.
    Norm {
        residual: bool,
    },
}

/// What SwiGLU takes beside its matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Nothing.
    Plain,
    Clamp,
    /// A clamp that counts.
    Counts,
    /// One for each row.
    Weights,
    /// One for each row, of which some are negative: these rows are skipped.
    Experts,
    /// All of them; of gradients, which do not count, the others.
    All,
}

impl Gate {
    pub const ALL: [Self; 6] = [Self::Plain, Self::Clamp, Self::Counts, Self::Weights, Self::Experts, Self::All];

    /// The bound, which some of the standard normal numbers are beyond.
    pub fn clamp(self) -> Option<f32> {
        matches!(self, Self::Clamp | Self::Counts | Self::All).then_some(1.0)
    }

    pub fn counts(self) -> bool {
        matches!(self, Self::Counts | Self::All)
    }

    pub fn weights(self) -> bool {
        matches!(self, Self::Weights | Self::All)
    }

    pub fn experts(self) -> bool {
        matches!(self, Self::Experts | Self::All)
    }

    /// Rows of so many that are not skipped, where experts are those of [`experts`].
    fn rows(self, rows: usize) -> usize {
        if self.experts() { rows - rows / 4 } else { rows }
    }

    /// Bytes of what goes with rows, and of counts.
    fn bytes(self, rows: usize) -> usize {
        4 * rows * (usize::from(self.weights()) + usize::from(self.experts())) + 24 * usize::from(self.counts())
    }
}

/// The experts of rows: every fourth row is skipped.
pub fn experts(rows: usize) -> Vec<i32> {
    (0..rows as i32).map(|i| if i % 4 == 3 { -1 } else { i % 8 }).collect()
}

/// Rows that are chosen, as many as there are: each once, far from its neighbours, but for every sixteenth, which is zeros.
pub fn chosen_rows(rows: usize) -> Vec<i32> {
    // A prime that does not divide their number leads to each.
    let stride = [97, 89, 83, 79].into_iter().find(|stride| !rows.is_multiple_of(*stride)).unwrap_or(1);
    (0..rows).map(|i| if i % 16 == 15 { -1 } else { (i * stride % rows.max(1)) as i32 }).collect()
}

/// A function of each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Silu,
    Gelu,
    GeluTanh,
}

impl Function {
    pub const ALL: [Self; 3] = [Self::Silu, Self::Gelu, Self::GeluTanh];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu-tanh",
        }
    }

    /// What the reference computes.
    pub fn of(self, x: ArrayView2<'_, f32>) -> Array2<f32> {
        match self {
            Self::Silu => reference::silu(x),
            Self::Gelu => reference::gelu(x),
            Self::GeluTanh => reference::gelu_tanh(x),
        }
    }
}

impl Producer {
    /// Whether it counts what a clamp changes.
    pub fn counts(self) -> bool {
        matches!(self, Self::Swiglu(gate) if gate.counts())
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "bf16",
            Self::Swiglu(Gate::Plain) => "swiglu of bf16",
            Self::Swiglu(Gate::Clamp) => "swiglu of bf16, clamp",
            Self::Swiglu(Gate::Counts) => "swiglu of bf16, clamp and counts",
            Self::Swiglu(Gate::Weights) => "swiglu of bf16, weights",
            Self::Swiglu(Gate::Experts) => "swiglu of bf16, experts, a quarter skipped",
            Self::Swiglu(Gate::All) => "swiglu of bf16, clamp, counts, weights, experts",
            Self::Activated(Function::Silu) => "silu of bf16",
            Self::Activated(Function::Gelu) => "gelu of bf16",
            Self::Activated(Function::GeluTanh) => "gelu-tanh of bf16",
            Self::Norm { residual: false } => "rms norm of bf16",
            Self::Norm { residual: true } => "rms norm of bf16 and a residual",
        }
    }

    /// Bytes that it reads, and writes beside a cast, for a result of this shape.
    fn bytes(self, rows: usize, cols: usize) -> u64 {
        let plain = |rows: usize| (rows * cols * DType::Bf16.bytes()) as u64;
        match self {
            Self::Swiglu(gate) => 2 * plain(gate.rows(rows)) + gate.bytes(rows) as u64,
            // The residual is read, the sum written.
            Self::Norm { residual: true } => 3 * plain(rows),
            Self::Plain | Self::Activated(_) | Self::Norm { residual: false } => plain(rows),
        }
    }
}

/// What is timed. Casts of codes are to exact scales, from ones of powers of two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantizer {
    /// A plain matrix, or what a producer makes of it, to codes. Of producers with the scale of the whole matrix given.
    Quantize(Producer, Target),
    /// A plain matrix to codes of its rows and of its columns.
    Both(Recipe),
    /// A plain matrix to codes, by scales that are there.
    Codes(CastScheme),
    /// Its scales alone.
    Scales(CastScheme),
    /// A plain matrix of another type than BF16 to codes.
    Wide(DType, CastScheme),
    /// Codes to other codes.
    Again(CastScheme, CastScheme),
    /// Chosen rows of a plain matrix, or of what a producer makes of it, to codes.
    Chosen(Producer, CastScheme),
    /// Chosen rows of codes to other codes.
    ChosenAgain(CastScheme, CastScheme),
    /// Codes to numbers.
    Back(CastScheme, DType),
    /// E2M1 to E4M3 of the same values.
    Lossless(CastScheme, CastScheme),
    /// The same with a count of groups that are lost; the CPU looks for them either way.
    LosslessCounted(CastScheme, CastScheme),
    /// The gradient of what SwiGLU reads, in BF16 or from these codes, of twice the columns; beside it what else the pass writes, or
    /// nothing.
    Backward { from: Option<CastScheme>, gate: Gate, to: Target, all: bool },
}

impl Quantizer {
    /// What it reads.
    pub fn reads(self) -> String {
        match self {
            Self::Quantize(producer, _) => producer.name().into(),
            Self::Both(_) | Self::Codes(_) | Self::Scales(_) => Producer::Plain.name().into(),
            Self::Wide(dtype, _) => dtype.to_string(),
            Self::Again(from, _) | Self::Back(from, _) | Self::Lossless(from, _) | Self::LosslessCounted(from, _) => {
                from.to_string()
            }
            Self::Chosen(producer, _) => format!("chosen rows of {}", producer.name()),
            Self::ChosenAgain(from, _) => format!("chosen rows of {from}"),
            Self::Backward { from, gate, .. } => {
                let from = from.map_or(DType::Bf16.to_string(), |from| from.to_string());
                let beside = if gate == Gate::Plain { "" } else { ", clamp, weights, experts" };
                format!("gradients of swiglu of {from}{beside}")
            }
        }
    }

    /// What it makes.
    pub fn makes(self) -> String {
        match self {
            Self::Quantize(producer, Target::Recipe(recipe)) => {
                let given = producer != Producer::Plain && has_one_scale(recipe);
                format!("{}{}", by_rule(recipe), if given { ", given scale" } else { "" })
            }
            Self::Both(recipe) => format!("{}, and transposed", recipe.scheme()),
            Self::Quantize(_, Target::Cast(recipe)) => StoredScheme::Cast(recipe.scheme()).to_string(),
            Self::Codes(to) => format!("{}, given scales", StoredScheme::Cast(to)),
            Self::Scales(to) => format!("{}, scales alone", StoredScheme::Cast(to)),
            Self::Again(_, to) | Self::Chosen(_, to) | Self::ChosenAgain(_, to) | Self::Wide(_, to) => {
                StoredScheme::Cast(to).to_string()
            }
            Self::Back(_, out) => out.to_string(),
            Self::Lossless(_, to) => format!("{to}, lossless"),
            Self::LosslessCounted(_, to) => format!("{to}, lossless, counted"),
            Self::Backward { to, all, .. } => {
                let to = match to {
                    Target::Cast(recipe) => StoredScheme::Cast(recipe.scheme()).to_string(),
                    Target::Recipe(recipe) => by_rule(recipe),
                };
                if all { format!("{to}, bf16, the result, weights") } else { to }
            }
        }
    }

    /// Bytes that it must move for a result of this shape: each element, code and scale read or written once. Of gradients the shape is
    /// that of the result of SwiGLU.
    pub fn bytes(self, rows: usize, cols: usize) -> u64 {
        let plain = (rows * cols * DType::Bf16.bytes()) as u64;
        let cast = |scheme| Target::Cast(CastRecipe::new(scheme)).bytes(rows, cols);
        match self {
            Self::Quantize(producer, target) => producer.bytes(rows, cols) + target.bytes(rows, cols),
            Self::Both(recipe) => {
                let to = Target::Recipe(recipe);
                plain + to.bytes(rows, cols) + to.bytes(cols, rows)
            }
            Self::Codes(to) => plain + cast(to),
            Self::Scales(to) => plain + to.scale_bytes(rows, cols) as u64,
            Self::Wide(dtype, to) => (rows * cols * dtype.bytes()) as u64 + cast(to),
            Self::Again(from, to) | Self::Lossless(from, to) => cast(from) + cast(to),
            Self::LosslessCounted(from, to) => cast(from) + cast(to) + 4,
            Self::Chosen(producer, to) => producer.bytes(rows - rows / 16, cols) + 4 * rows as u64 + cast(to),
            Self::ChosenAgain(from, to) => {
                Target::Cast(CastRecipe::new(from)).bytes(rows - rows / 16, cols) + 4 * rows as u64 + cast(to)
            }
            Self::Back(from, out) => cast(from) + (rows * cols * out.bytes()) as u64,
            Self::Backward { from, gate, to, all } => {
                let read = gate.rows(rows);
                let plain_read = (read * cols * DType::Bf16.bytes()) as u64;
                let x = from.map_or(2 * plain_read, |from| Target::Cast(CastRecipe::new(from)).bytes(read, 2 * cols));
                let beside = if all { 3 * plain + 4 * rows as u64 } else { 0 };
                let with_rows = 4 * rows * (usize::from(gate.weights()) + usize::from(gate.experts()));
                x + plain_read + with_rows as u64 + to.bytes(rows, 2 * cols) + beside
            }
        }
    }

    /// Refuses gradients of columns whose groups would be of both halves, which the library's call refuses as well.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn check_cols(self, cols: usize) -> Result<()> {
        let width = match self {
            Self::Backward { to: Target::Cast(recipe), .. } => recipe.scheme().group().extents()[1],
            Self::Backward { to: Target::Recipe(Recipe::Fp8(_)), .. } => Extent::Elements(128),
            Self::Backward { to: Target::Recipe(_), .. } => Extent::Elements(32),
            _ => return Ok(()),
        };
        match width {
            Extent::Elements(width) if !cols.is_multiple_of(width) => Err(Error::shape(
                "gradients of SwiGLU",
                format!("halves of {cols} columns"),
                format!("must be a multiple of {width}, so that no group has columns of both"),
                format!("take --shapes whose k is a multiple of {width}"),
            )),
            _ => Ok(()),
        }
    }
}

/// The scheme, and the rule where it is not that of the default; producers' FP8 is always that of casts.
fn by_rule(recipe: Recipe) -> String {
    let is_default = match recipe {
        Recipe::Fp8(fp8) => fp8.scales == Fp8Scales::Exact,
        other => other == Recipe::new(other.scheme()),
    };
    if is_default { recipe.scheme().to_string() } else { format!("{}, {recipe}", recipe.scheme()) }
}

/// Whether products read it with one scale of the whole matrix, which a producer is given.
pub fn has_one_scale(recipe: Recipe) -> bool {
    matches!(recipe.scheme(), Scheme::Fp8Tensor(_) | Scheme::Nvfp4)
}

/// Every format and grouping of a cast, per channel also transposed.
pub fn cast_schemes() -> Vec<CastScheme> {
    CastScheme::all().filter(|scheme| scheme.scales() == CastScales::RowMajor).collect()
}

//! What makes codes, and what is made of them: the quantizers, casts and producers that `bench --quantizers` times.

use ndarray::{Array2, ArrayView2};
use scaled_gemm::checkpoint::StoredScheme;
use scaled_gemm::{
    Basis, BlockScaleRule, CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, CodeRounding, DType, Error,
    ErrorMath, ErrorMetric, Extent, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, Nvfp4Options, Nvfp4Recipe,
    Nvfp4Rule, Recipe, Result, Scheme, reference,
};

use crate::args::{scheme, scheme_names};
use crate::target::Target;

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
    /// The gradient of what SwiGLU reads, in BF16 or from these codes, of twice the columns; beside it what else the pass writes, or
    /// nothing.
    Backward { from: Option<CastScheme>, gate: Gate, to: Target, all: bool },
}

impl Quantizer {
    /// The default recipe of each scheme, other rules and roundings of NVFP4, FP8 in both directions; every cast, with scales row-major and along rows in each order, some by given scales
    /// and some scales alone; every producer to what products read, and to what casts make; SwiGLU with what it takes beside; its gradients; chosen rows; casts of codes
    /// and back.
    pub fn all() -> Result<Vec<Self>> {
        use CastGroup::{Group1x16, Group1x32, Group1x64, Group1x128, Group32x1, Group128x1, Row, Tile128x128};
        let recipe = |name| Target::Recipe(Recipe::new(scheme(name, Fp8Format::E4M3)));
        let plain = |target| Self::Quantize(Producer::Plain, target);
        let mut all: Vec<_> = scheme_names().into_iter().map(|name| plain(recipe(name))).collect();
        all.extend(other_nvfp4()?.into_iter().map(|recipe| plain(Target::Recipe(recipe))));
        let fp8 = Fp8Granularity::ALL.map(|granularity| Recipe::from(Fp8Recipe::new(granularity, Fp8Format::E4M3)));
        all.extend(fp8.map(Self::Both));
        let cast = |scheme| Target::Cast(CastRecipe::new(scheme));
        let e4m3 = |group| CastScheme::new(CodeFormat::E4M3, group);
        let e2m1 = |group| CastScheme::new(CodeFormat::E2M1, group);
        for scheme in cast_schemes() {
            all.push(plain(cast(scheme)));
            if matches!(scheme.group(), Group1x16 | Group1x32 | Group1x64 | Group1x128) {
                let orders = [CastScales::ColumnMajor, CastScales::Ue8m0];
                all.extend(orders.map(|order| plain(cast(scheme.with_scales(order)))));
            }
        }
        for scheme in
            [e4m3(Group1x128)?, e4m3(Row)?, e4m3(Tile128x128)?, e4m3(Group128x1)?, e2m1(Group1x32)?, e2m1(Group1x128)?]
        {
            all.extend([Self::Codes(scheme), Self::Scales(scheme)]);
        }
        let swiglu = Producer::Swiglu(Gate::Plain);
        let of_elements = Function::ALL.map(Producer::Activated);
        let norms = [false, true].map(|residual| Producer::Norm { residual });
        let read = read_of_producers();
        let columns = |scheme: CastScheme| cast(scheme.with_scales(CastScales::ColumnMajor));
        for producer in [swiglu].into_iter().chain(of_elements).chain(norms) {
            for group in [Group1x128, Row, Group128x1] {
                all.push(Self::Quantize(producer, columns(e4m3(group)?)));
            }
            all.extend(read.iter().map(|recipe| Self::Quantize(producer, Target::Recipe(*recipe))));
            // SwiGLU to all that there is; functions of elements share kernels, of which some say what the others take.
            let groups = match producer {
                Producer::Swiglu(_) => CastGroup::ALL.to_vec(),
                Producer::Activated(_) => vec![Group1x32, Tile128x128],
                _ => vec![Group1x16, Group1x32, Group1x64, Tile128x128],
            };
            let others = groups.into_iter().filter(|group| ![Group1x128, Row, Group128x1].contains(group));
            for group in others {
                all.push(Self::Quantize(producer, columns(e4m3(group)?)));
            }
            let groups = match producer {
                Producer::Swiglu(_) => vec![Group1x16, Group1x32, Group1x64, Group1x128, Row, Tile128x128, Group128x1],
                Producer::Activated(_) => vec![Group1x32],
                _ => vec![Group1x32, Group1x128],
            };
            for group in groups {
                all.push(Self::Quantize(producer, columns(e2m1(group)?)));
            }
        }
        for gate in Gate::ALL.into_iter().filter(|gate| *gate != Gate::Plain) {
            all.push(Self::Quantize(Producer::Swiglu(gate), columns(e4m3(Group1x128)?)));
        }
        let gated = Producer::Swiglu(Gate::All);
        all.push(Self::Quantize(gated, columns(e4m3(Group128x1)?)));
        all.push(Self::Quantize(gated, recipe("mxfp8")));
        for group in [Group32x1, Group128x1] {
            all.push(Self::Quantize(swiglu, cast(e4m3(group)?.transposed()?)));
        }
        for from in [None, Some(e4m3(Group1x128)?)] {
            let backward = |to, all| Self::Backward { from, gate: Gate::Plain, to, all };
            let [narrow, wide] = [cast(e4m3(Group1x32)?), cast(e4m3(Group1x128)?)];
            all.extend([backward(narrow, false), backward(wide, false), backward(wide, true)]);
            for recipe in read_of_gradients() {
                all.extend([false, true].map(|beside| backward(Target::Recipe(recipe), beside)));
            }
            all.push(Self::Backward { from, gate: Gate::All, to: wide, all: true });
        }
        let to_e4m3 = [Group1x32, Group32x1, Group128x1].map(e4m3);
        let to_e2m1 = [Group1x16, Group1x32, Group1x64, Group1x128, Group32x1, Group128x1].map(e2m1);
        for to in to_e4m3.into_iter().chain(to_e2m1) {
            all.push(Self::Again(e4m3(Group1x128)?, to?));
        }
        for to in [Group1x128, Group128x1] {
            all.push(Self::Again(e2m1(Group1x32)?, e4m3(to)?));
        }
        for to in [e4m3(Group1x128)?, e4m3(Row)?, e4m3(Group128x1)?, e2m1(Group1x32)?] {
            all.push(Self::Chosen(Producer::Plain, to));
        }
        for producer in [swiglu, Producer::Activated(Function::Silu)] {
            all.push(Self::Chosen(producer, e4m3(Group1x128)?));
        }
        for to in [e4m3(Group1x128)?, e4m3(Group128x1)?] {
            all.push(Self::ChosenAgain(e4m3(Group1x128)?, to));
        }
        for scheme in cast_schemes().into_iter().filter(|scheme| !scheme.is_transposed()) {
            all.push(Self::Back(scheme, DType::Bf16));
        }
        let groups = e4m3(Group1x128)?;
        all.extend([DType::F16, DType::F32].map(|out| Self::Back(groups, out)));
        let bytes = |scheme: CastScheme| scheme.with_scales(CastScales::Ue8m0);
        all.push(Self::Lossless(bytes(e2m1(Group1x32)?), bytes(e4m3(Group1x128)?)));
        Ok(all)
    }

    /// What it reads.
    pub fn reads(self) -> String {
        match self {
            Self::Quantize(producer, _) => producer.name().into(),
            Self::Both(_) | Self::Codes(_) | Self::Scales(_) => Producer::Plain.name().into(),
            Self::Again(from, _) | Self::Back(from, _) | Self::Lossless(from, _) => from.to_string(),
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
                let other = matches!(recipe, Recipe::Nvfp4(_)) && recipe != Recipe::new(recipe.scheme());
                let rule = if other { format!(", {recipe}") } else { String::new() };
                format!("{}{rule}{}", recipe.scheme(), if given { ", given scale" } else { "" })
            }
            Self::Both(recipe) => format!("{}, and transposed", recipe.scheme()),
            Self::Quantize(_, Target::Cast(recipe)) => StoredScheme::Cast(recipe.scheme()).to_string(),
            Self::Codes(to) => format!("{}, given scales", StoredScheme::Cast(to)),
            Self::Scales(to) => format!("{}, scales alone", StoredScheme::Cast(to)),
            Self::Again(_, to) | Self::Chosen(_, to) | Self::ChosenAgain(_, to) => StoredScheme::Cast(to).to_string(),
            Self::Back(_, out) => out.to_string(),
            Self::Lossless(_, to) => format!("{to}, lossless"),
            Self::Backward { to, all, .. } => {
                let to = match to {
                    Target::Cast(recipe) => StoredScheme::Cast(recipe.scheme()).to_string(),
                    Target::Recipe(recipe) => recipe.scheme().to_string(),
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
            Self::Again(from, to) | Self::Lossless(from, to) => cast(from) + cast(to),
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
                "take a shape of such columns",
            )),
            _ => Ok(()),
        }
    }
}

/// Whether products read it with one scale of the whole matrix, which a producer is given.
pub fn has_one_scale(recipe: Recipe) -> bool {
    matches!(recipe.scheme(), Scheme::Fp8Tensor(_) | Scheme::Nvfp4)
}

/// NVFP4 by other rules than the default: its transform, its random rounding, torchao's scales, and the two scales of 4over6, per row.
fn other_nvfp4() -> Result<Vec<Recipe>> {
    let options = Nvfp4Options::default();
    let random = CodeRounding::Stochastic { seed: 1, offset: 2 };
    let four_over_six = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mae, math: ErrorMath::Strict };
    Ok(vec![
        Nvfp4Recipe::tensor(Nvfp4Options { basis: Basis::Hadamard16, ..options })?.into(),
        Nvfp4Recipe::tensor(Nvfp4Options { rounding: random, ..options })?.into(),
        Nvfp4Recipe::tensor(Nvfp4Options { rule: Nvfp4Rule::TorchAo, ..options })?.into(),
        Nvfp4Recipe::rows(Nvfp4Options { block_scale: four_over_six, ..options })?.into(),
    ])
}

/// What products read, as gradients are written.
fn read_of_gradients() -> [Recipe; 2] {
    let groups = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    [groups.into(), Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3))]
}

/// What products read, as producers write it.
fn read_of_producers() -> Vec<Recipe> {
    let deepseek = |granularity| Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek).into();
    let schemes = [
        Scheme::Fp8Tensor(Fp8Format::E4M3),
        Scheme::Mxfp8(Fp8Format::E4M3),
        Scheme::Mxfp4,
        Scheme::Nvfp4,
        Scheme::Nvfp4Row,
    ];
    [Fp8Granularity::Row, Fp8Granularity::Group1x128]
        .map(deepseek)
        .into_iter()
        .chain(schemes.map(Recipe::new))
        .collect()
}

/// Every format and grouping of a cast, per channel also transposed.
pub fn cast_schemes() -> Vec<CastScheme> {
    CastScheme::all().filter(|scheme| scheme.scales() == CastScales::RowMajor).collect()
}

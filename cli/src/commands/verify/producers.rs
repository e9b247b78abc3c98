//! Producers against their definition: to every cast and to what products read, of all rows and of chosen ones, whole and in parts.

use ndarray::Array2;
use scaled_gemm::codec::round_to;
use scaled_gemm::reference::{self, CastInput, ClampCounts, RmsNorm, Swiglu, definition};
use scaled_gemm::{CodeFormat, DType, Error};

use super::kinds::{Draw, Kind};
use super::sources::{Check, Parts, SHAPE, Turn, chosen_rows, turns};
use super::tally::Tally;
use super::{Findings, WIDE, gradients, near, targets, test_matrix};
use crate::device::sources::{Counting, HostSource, HostValues, Part, Sources, Wide, gather, read_rows};
use crate::output::Failure;
use crate::produced;
use crate::quantizers::{Function, Gate, Producer};

/// All that there is to check.
pub(super) const CHECKS: [Check; 4] = [produced, norms, gradients::check, refused];

/// What goes with rows and columns.
pub(super) struct Beside {
    pub weights: Vec<f32>,
    pub columns: Vec<f32>,
    pub experts: Vec<i32>,
}

impl Beside {
    /// For data of a kind: powers of two beside ties, which stay such.
    pub(super) fn new([rows, cols]: [usize; 2], kind: Kind) -> Self {
        let factor = |at: usize, of: usize, least: f32| match kind {
            Kind::Ties => 2f32.powi(-((at % 3) as i32)),
            _ => least + (at * 37 % of) as f32 / of as f32,
        };
        Self {
            weights: (0..rows).map(|i| factor(i, rows, 0.25)).collect(),
            columns: (0..cols).map(|j| factor(j, cols, 0.5)).collect(),
            experts: (0..rows as i32).map(|i| if i % 7 == 3 { -1 } else { i % 5 }).collect(),
        }
    }

    /// What SwiGLU takes of it; a bound that some of the data are beyond.
    pub(super) fn swiglu(&self, gate: Gate) -> Swiglu<'_> {
        Swiglu {
            clamp: gate.clamp().map(|_| 2.0),
            weights: gate.weights().then_some(&self.weights),
            experts: gate.experts().then_some(&self.experts),
        }
    }

    /// A producer of [`ways`], of a matrix of [`matrix`].
    pub(super) fn values<'a>(&'a self, way: Producer, x: Wide<'a>) -> HostValues<'a> {
        match way {
            Producer::Plain => HostValues::Plain(x),
            Producer::Swiglu(gate) => {
                let counting = if gate.counts() { Counting::Counted } else { Counting::Uncounted };
                HostValues::Swiglu(x, self.swiglu(gate), counting)
            }
            Producer::Activated(function) => HostValues::Activated(x, function),
            Producer::Norm { .. } => HostValues::Normed(x, &self.weights, &self.columns),
        }
    }
}

/// SwiGLU with each that it takes beside, each function of elements, and a norm by factors that are known.
pub(super) fn ways() -> impl Iterator<Item = (String, Producer)> {
    let gated = Gate::ALL.map(|gate| {
        let beside = match gate {
            Gate::Plain => "",
            Gate::Clamp => ", clamp",
            Gate::Counts => ", clamp and counts",
            Gate::Weights => ", weights",
            Gate::Experts => ", experts",
            Gate::All => ", clamp, counts, weights and experts",
        };
        (format!("swiglu{beside}"), Producer::Swiglu(gate))
    });
    let activated = Function::ALL.map(|function| (function.name().to_string(), Producer::Activated(function)));
    let normed = ("rms norm by its factors".to_string(), Producer::Norm { residual: false });
    gated.into_iter().chain(activated).chain([normed])
}

/// What a producer reads, of the shape of what it makes. Ties are between codes of that: functions leave large numbers as they are, and SwiGLU multiplies
/// those by 1.
pub(super) fn matrix(way: Producer, kind: Kind, draw: Draw) -> Array2<f32> {
    let Draw { shape: [rows, cols], format, .. } = draw;
    let gated = matches!(way, Producer::Swiglu(_));
    let mut x = kind.matrix(Draw { shape: [rows, if gated { 2 * cols } else { cols }], ..draw });
    if kind == Kind::Ties && !matches!(way, Producer::Norm { .. }) {
        // Within the range of F16.
        let large = (16384.0 / format.max()).log2().floor().exp2();
        x.indexed_iter_mut().for_each(|((_, j), v)| *v = if j < cols { *v * large } else { 1.0 });
    }
    x
}

/// What a producer makes of a kind of data of one type, computed once for all that is made of it.
struct Made<'a> {
    x: &'a Array2<f32>,
    dtype: DType,
    values: Array2<f32>,
    counts: ClampCounts,
}

/// SwiGLU, activations, and norms whose factors are known: to every cast, whole, of chosen rows, and in parts, and to what products read.
fn produced(device: &mut dyn Sources, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    let rows = chosen_rows();
    let (mut casts, mut quantized, mut parts) = (Tally::default(), Tally::default(), Parts::default());
    for (at, (name, way)) in ways().enumerate() {
        let (mut whole, mut products) = (Tally::default(), Tally::default());
        for (k, kind) in Kind::ALL.into_iter().enumerate() {
            let beside = Beside::new(SHAPE, kind);
            // Ties are those of a format; the others are alike for all of them.
            let formats: &[CodeFormat] = if kind == Kind::Ties { &CodeFormat::ALL } else { &CodeFormat::ALL[..1] };
            for (format, dtype) in formats.iter().flat_map(|format| WIDE.map(|dtype| (*format, dtype))) {
                let taken = |other: CodeFormat| kind != Kind::Ties || other == format;
                let x = matrix(way, kind, Draw { shape: SHAPE, dtype, format, seed: seed.wrapping_add(at as u64) });
                let values = beside.values(way, Wide { values: &x, dtype });
                let (computed, counts) = values.computed()?;
                whole.off(near::of_values(&values, &computed), kind);
                if let HostValues::Swiglu(x, options, Counting::Counted) = values {
                    whole.counts(definition::swiglu(x.values.view(), &options).1, counts, kind);
                }
                let made = Made { x: &x, dtype, values: computed, counts };
                let mine = |turn: &Turn| turn.dtype == dtype && taken(turn.recipe.scheme().format());
                for turn in turns(kind, at).filter(mine) {
                    let read = made.read_by(way, turn);
                    let (got, counted) = device.cast_source(&values.into(), Part::Whole, turn.recipe)?;
                    whole.cast(&definition::cast(&read.view().into(), turn.recipe)?, &got, kind);
                    if way.counts() {
                        whole.counts(made.counts, counted, kind);
                    }
                    match (turn.at + k) % 3 {
                        0 => made.chosen(device, (&values, turn), &read, &rows, &mut casts)?,
                        1 => {
                            let counted = parts.check(device, &values.into(), &read.view().into(), turn)?;
                            if way.counts() {
                                parts.counts(made.counts, counted, kind);
                            }
                        }
                        _ => {}
                    }
                }
                let recipes = produced::products().into_iter().enumerate();
                // A third of the kinds for each, and each kind for a third of them.
                for (n, recipe) in
                    recipes.filter(|(n, recipe)| (n + at + k).is_multiple_of(3) && taken(recipe.format()))
                {
                    if WIDE[(n / 3 + at) % 3] != made.dtype {
                        continue;
                    }
                    let (given, named) = (targets::given(recipe, n + at + k), (produced::name(recipe), kind));
                    let (got, amax) = device.quantize_source(&values.into(), recipe, given)?;
                    products.product(&targets::defined(&made.values, recipe, given)?, &got, named.clone());
                    if let Some(amax) = amax {
                        products.floats(&[targets::amax(&made.values)], &[amax], "the largest magnitude", kind);
                    }
                    if (n / 3 + k).is_multiple_of(3) {
                        let source = HostSource { values, rows: Some(&rows) };
                        let want = targets::defined(&gather(&made.values, &rows), recipe, given)?;
                        quantized.product(&want, &device.quantize_source(&source, recipe, given)?.0, named);
                    }
                }
            }
        }
        whole.finish(&name, "casts", found);
        products.finish(&name, "what products read", found);
    }
    casts.finish("chosen rows of producers", "casts", found);
    quantized.finish("chosen rows of producers", "what products read", found);
    parts.finish(" of producers", found);
    Ok(())
}

impl Made<'_> {
    /// The values as a cast reads them: SwiGLU per channel in BF16.
    fn read_by(&self, way: Producer, turn: Turn) -> Array2<f32> {
        let rounded = matches!(way, Producer::Swiglu(_)) && turn.recipe.scheme().group().is_per_channel();
        let values = self.values.clone();
        if rounded { reference::round_values(values, DType::Bf16) } else { values }
    }

    /// Chosen rows of it, which are counted as often as they are read.
    fn chosen(
        &self,
        device: &mut dyn Sources,
        (values, turn): (&HostValues<'_>, Turn),
        read: &Array2<f32>,
        rows: &[i32],
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let want = definition::cast(&CastInput::from(read.view()).gathered(rows)?, turn.recipe)?;
        let source = HostSource { values: *values, rows: Some(rows) };
        let (got, counted) = device.cast_source(&source, Part::Whole, turn.recipe)?;
        tally.cast(&want, &got, turn.kind);
        if let HostValues::Swiglu(_, options, Counting::Counted) = values {
            let (x, experts) = read_rows(self.x, options.experts, rows);
            let options = Swiglu { weights: None, experts: experts.as_deref(), ..*options };
            tally.counts(definition::swiglu(x.view(), &options).1, counted, turn.kind);
        }
        Ok(())
    }
}

/// RMSNorm, with and without a residual: in one pass along rows, in two to tiles, channels, and most of what products read.
fn norms(device: &mut dyn Sources, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    let [rows, cols] = SHAPE;
    for (name, added) in [("rms norm", false), ("rms norm of x and a residual", true)] {
        let (mut casts, mut products) = (Tally::default(), Tally::default());
        for ((k, kind), dtype) in Kind::ALL.into_iter().enumerate().flat_map(|of| WIDE.map(|dtype| (of, dtype))) {
            let weight = Beside::new(SHAPE, kind).columns;
            let x = kind.matrix(Draw { shape: SHAPE, dtype, format: CodeFormat::E4M3, seed });
            let residual = test_matrix(rows, cols, dtype, seed.wrapping_add(1));
            let residual = added.then(|| residual.view());
            let norm = RmsNorm { weight: &weight, epsilon: 1e-6, residual, dtype };
            let want = reference::rms_norm(x.view(), &norm)?;
            let wide = Wide { values: &x, dtype };
            casts.off(near::of_norm(&x, &norm, &want.values), kind);
            for turn in turns(kind, usize::from(added)).filter(|turn| turn.dtype == dtype) {
                let got = device.rms_norm_cast(wide, &norm, turn.recipe)?;
                casts.cast(&definition::cast(&want.values.view().into(), turn.recipe)?, &got.cast, kind);
                casts.floats(&want.rstd, &got.rstd, "the factors of rows", kind);
                if let Some(residual) = residual {
                    let sum: Vec<f32> = x.iter().zip(&residual).map(|(x, r)| round_to(dtype, x + r)).collect();
                    let got: Vec<f32> = got.sum.iter().flatten().copied().collect();
                    casts.floats(&sum, &got, "the sum", kind);
                }
            }
            let recipes = produced::products().into_iter().enumerate();
            let mine = |n: usize| (n + k + usize::from(added)).is_multiple_of(3) && WIDE[n / 3 % 3] == dtype;
            for (n, recipe) in recipes.filter(|(n, _)| mine(*n)) {
                let given = targets::given(recipe, n + k);
                let got = device.rms_norm_quantize(wide, &norm, recipe, given)?;
                let named = (produced::name(recipe), kind);
                products.product(&targets::defined(&want.values, recipe, given)?, &got, named);
            }
        }
        casts.finish(name, "casts", found);
        products.finish(name, "what products read", found);
    }
    Ok(())
}

/// That a GPU refuses every recipe that is not checked here: what it takes is verified. (The CPU quantizes values, whatever made them.)
fn refused(device: &mut dyn Sources, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    if !device.refuses_recipes() {
        return Ok(());
    }
    let way = Producer::Activated(Function::Silu);
    let draw = Draw { shape: SHAPE, dtype: DType::Bf16, format: CodeFormat::E4M3, seed };
    let x = matrix(way, Kind::Normal, draw);
    let beside = Beside::new(SHAPE, Kind::Normal);
    let values = beside.values(way, Wide { values: &x, dtype: DType::Bf16 }).into();
    let mut tally = Tally::default();
    for recipe in produced::refused() {
        let wrong = match device.quantize_source(&values, recipe, targets::given(recipe, 0)) {
            Err(Error::Unsupported { .. }) => 0,
            Err(error) => return Err(error.into()),
            Ok(_) => 1,
        };
        tally.refused(produced::name(recipe), wrong);
    }
    tally.finish("producers", "what is refused", found);
    Ok(())
}

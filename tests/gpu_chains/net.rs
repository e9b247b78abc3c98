//! Layers one behind the other, and what the crate tells of the links that they make.

use std::rc::Rc;

use scaled_gemm::{
    CapturedGraph, CodeOrder, DType, DeviceBuffer, Error, Formulation, GemmArgs, GemmDesc, GemmPlan, Handle,
    KeptWeights, KernelFamily, MatMut, MatRef, Operand, PlanOptions, QuantMatrix, QuantizeTo, Recipe, Scheme,
    SmallMConfig,
};

use crate::common::*;
use crate::small_m_weights;
use crate::told::told;

/// A handle on an sm_90.
pub fn hopper() -> Option<Handle> {
    handle_with(KernelFamily::SmallM)
}

/// Links of chains and how many of them load their weights early.
pub fn links_of<T>(work: impl FnOnce() -> T) -> (T, [usize; 2]) {
    let (done, events) = told("kernels::small_m", work);
    let early = events.iter().filter_map(|fields| fields.get("loads_early")).collect::<Vec<_>>();
    (done, [early.len(), early.iter().filter(|early| **early == "true").count()])
}

/// Square layers one behind the other: what one stores is what the next multiplies.
pub struct Net {
    pub m: usize,
    pub n: usize,
    pub layers: Vec<Layer>,
    /// What goes into the first, and what each stores, BF16 `[m][n]`: a buffer for each, or two in turns.
    pub values: Vec<DeviceBuffer>,
    /// Of FP8 layers: `values` quantized.
    pub a: Option<QuantMatrix>,
    pub x: Vec<u8>,
}

pub struct Layer {
    pub b: Rc<QuantMatrix>,
    pub plan: GemmPlan,
}

/// How a layer is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    /// Our product of few rows, of what the layer before stored.
    SmallM(Scheme),
    /// The same of codes that are repacked.
    Repacked(Scheme),
    /// cuBLASLt, of the same, behind a kernel of ours that multiplies alpha by the second level of B.
    Library,
    /// Our product of few rows, of that quantized.
    Quantized(Scheme, Scheme),
    /// cuBLASLt, of that quantized: right behind the quantizer.
    Native(Scheme, Scheme),
}

impl Net {
    /// `count` layers, `kinds` in turns, of so many matrices of each.
    pub fn new(handle: &Handle, m: usize, n: usize, kinds: &[By], count: usize, matrices: usize) -> Self {
        let mut rng = Noise::new(171);
        let noise: Vec<f32> = (0..n * n + matrices * 8).map(|_| rng.normal()).collect();
        let noise = handle.upload(&bytes_of(DType::Bf16, &noise)).unwrap();
        let noise = handle.read_bytes(&noise.view()).unwrap();
        let noise = handle.stream().clone_htod(&noise).unwrap();
        let quantized = |i: usize, scheme| {
            let part = noise.slice(i * 16..i * 16 + n * n * 2);
            let x = MatRef::new(part, DType::Bf16, n, n).unwrap();
            handle.quantize(&x, Recipe::new(scheme)).unwrap()
        };
        let mut made: Vec<Vec<Rc<QuantMatrix>>> = Vec::new();
        for kind in kinds {
            let scheme = match kind {
                By::SmallM(scheme) | By::Repacked(scheme) => *scheme,
                By::Quantized(_, scheme) | By::Native(_, scheme) => *scheme,
                By::Library => Scheme::Nvfp4,
            };
            let all = (0..matrices).map(|i| {
                let mut b = quantized(i, scheme);
                match kind {
                    By::Library => b.keep_dequantized(handle, DType::Bf16).unwrap(),
                    By::Repacked(_) => b.repack(handle, CodeOrder::Repacked).unwrap(),
                    _ => {}
                }
                Rc::new(b)
            });
            made.push(all.collect());
        }
        let mut layers: Vec<Layer> = Vec::new();
        for i in 0..count {
            let (kind, b) = (kinds[i % kinds.len()], made[i % kinds.len()][i / kinds.len() % matrices].clone());
            let (operand, formulation, kept) = match kind {
                By::SmallM(_) | By::Repacked(_) => {
                    (Operand::Plain(DType::Bf16), Formulation::SmallM, KeptWeights::Nothing)
                }
                By::Quantized(a, _) => (a.into(), Formulation::SmallM, KeptWeights::Nothing),
                By::Native(a, _) => (a.into(), Formulation::Native, KeptWeights::Nothing),
                By::Library => {
                    (Operand::Plain(DType::Bf16), Formulation::DequantizedBf16, KeptWeights::Dequantized(DType::Bf16))
                }
            };
            let desc = GemmDesc::new(m, n, n, operand, b.scheme(), DType::Bf16).with_kept(kept);
            let desc = desc.with_b_order(b.code_order());
            let mut plan = handle.plan_with(&desc, &PlanOptions::default().with_formulation(formulation)).unwrap();
            plan.prepare(handle, &b).unwrap();
            layers.push(Layer { b, plan });
        }
        let x: Vec<f32> = (0..m * n).map(|_| rng.normal()).collect();
        let values = (0..=count).map(|_| handle.alloc(m * n * 2).unwrap()).collect();
        let a = kinds.iter().find_map(|kind| match kind {
            By::Quantized(a, _) | By::Native(a, _) => Some(QuantMatrix::zeros(handle, *a, m, n).unwrap()),
            _ => None,
        });
        Self { m, n, layers, values, a, x: bytes_of(DType::Bf16, &x) }
    }

    /// Plans each layer anew, in the configuration of `small-m` that this says of it.
    pub fn plan_in(&mut self, handle: &Handle, config: impl Fn(usize) -> SmallMConfig) {
        for (i, Layer { b, plan }) in self.layers.iter_mut().enumerate() {
            *plan = small_m_weights::planned(handle, plan.desc(), config(i));
            plan.prepare(handle, b).unwrap();
        }
    }

    /// What goes in, and poison in the place of what is stored.
    pub fn reset(&mut self, handle: &Handle) {
        reset(handle, &mut self.values, &self.x);
    }

    pub fn layer(&mut self, handle: &Handle, i: usize) -> Result<(), Error> {
        self.quantize(handle, i)?;
        self.product(handle, i)
    }

    /// What goes into layer i, where that is quantized.
    pub fn quantize(&mut self, handle: &Handle, i: usize) -> Result<(), Error> {
        let Self { m, n, values, a, .. } = self;
        let Some(a) = a else { return Ok(()) };
        let x = MatRef::new(in_and_out(values, i).0, DType::Bf16, *m, *n)?;
        handle.quantize_into(&x, Recipe::new(a.scheme()), QuantizeTo::Plain(a))
    }

    /// Of layer i, behind [`Net::quantize`].
    pub fn product(&mut self, handle: &Handle, i: usize) -> Result<(), Error> {
        let Self { m, n, layers, values, a, .. } = self;
        let (x, d) = in_and_out(values, i);
        let (x, d) = (MatRef::new(x, DType::Bf16, *m, *n)?, MatMut::new(d, DType::Bf16, *m, *n)?);
        let Layer { b, plan } = &mut layers[i];
        let args = match a {
            Some(a) => GemmArgs::new(a, b, d),
            None => GemmArgs::weight_only(x, b, d),
        };
        // Sums of n products of such numbers are sqrt(n) times as large.
        plan.execute(handle, args.alpha(1.0 / (*n as f32).sqrt()))
    }

    pub fn all(&mut self, handle: &Handle) -> Result<(), Error> {
        (0..self.layers.len()).try_for_each(|i| self.layer(handle, i))
    }

    pub fn read(&self, handle: &Handle) -> Vec<Vec<u8>> {
        read(handle, &self.values)
    }

    /// What layer by layer stores, outside of graphs.
    pub fn want(&mut self, handle: &Handle) -> Vec<Vec<u8>> {
        self.reset(handle);
        self.all(handle).unwrap();
        let want = self.read(handle);
        let last = values_of(DType::Bf16, &want[self.layers.len() % want.len()]);
        let size = last.iter().map(|v| v.abs()).sum::<f32>() / last.len() as f32;
        assert!((0.05..20.0).contains(&size), "numbers of size {size} compare nothing");
        want
    }

    /// A graph stores the same, at every launch.
    pub fn check(&mut self, handle: &Handle, graph: &CapturedGraph, want: &[Vec<u8>], words: &str) {
        check(handle, graph, &mut self.values, &self.x, want, words);
    }
}

/// See [`Net::reset`]: `x` goes in, and as much is poison in the place of each that is stored.
pub fn reset(handle: &Handle, values: &mut [DeviceBuffer], x: &[u8]) {
    handle.write(&mut values[0].view_mut(), x).unwrap();
    let poison = vec![0xFFu8; x.len()];
    for value in &mut values[1..] {
        handle.write(&mut value.view_mut(), &poison).unwrap();
    }
}

pub fn read(handle: &Handle, values: &[DeviceBuffer]) -> Vec<Vec<u8>> {
    values.iter().map(|value| handle.read_bytes(&value.view()).unwrap()).collect()
}

/// See [`Net::check`].
pub fn check(
    handle: &Handle,
    graph: &CapturedGraph,
    values: &mut [DeviceBuffer],
    x: &[u8],
    want: &[Vec<u8>],
    words: &str,
) {
    for launch in 0..5 {
        reset(handle, values, x);
        handle.launch(graph).unwrap();
        let wrong = read(handle, values).iter().zip(want).position(|(got, want)| got != want);
        assert_eq!(wrong, None, "{words}: the first value that differs in launch {launch}");
    }
}

/// The buffers of layer i.
pub fn in_and_out(values: &mut [DeviceBuffer], i: usize) -> (&DeviceBuffer, &mut DeviceBuffer) {
    let (from, to) = (i % values.len(), (i + 1) % values.len());
    let (before, behind) = values.split_at_mut(from.max(to));
    match from < to {
        true => (&before[from], &mut behind[0]),
        false => (&behind[0], &mut before[to]),
    }
}

//! What suites of graphs share: a cast with its product, what becomes of it when its graph is launched later, and weights that
//! are written around graphs.
#![allow(dead_code)]

use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    CapturedGraph, DType, DeviceBuffer, Epilogue, Error, Formulation, GemmArgs, GemmDesc, GemmPlan, Handle, MatMut,
    MatRef, QuantMatrix, QuantizeTo, Recipe, Scheme, VecRef,
};

use crate::common::gemm::*;
use crate::common::*;
use crate::hazards::*;

pub const SHAPE: [usize; 3] = [16, 1024, 1024];

/// What a product reads beside codes and scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Nothing: rows by rows.
    Rows,
    /// Nothing either: blocks, by our product for sm_90.
    Sm90,
    /// Nothing either: rows by rows, by our product of few rows.
    SmallM,
    /// A dequantized into the handle's scratch memory, and codes of B: NVFP4, by our product of few rows.
    Codes,
    /// The repeated scales of B.
    Repeated,
    /// The values that B keeps.
    Kept,
    /// Both operands dequantized into the handle's scratch memory.
    Scratch,
}

/// X quantized into A, and A times B plus a bias into D: all in memory of this crate.
pub struct Call {
    pub x: DeviceBuffer,
    pub bias: DeviceBuffer,
    pub d: DeviceBuffer,
    pub a: QuantMatrix,
    pub b: QuantMatrix,
    pub plan: GemmPlan,
}

impl Call {
    /// `None`, with the reason, where the GPU has no such product.
    pub fn new(handle: &Handle, kind: Kind) -> Option<Self> {
        let [m, n, k] = SHAPE;
        let nvfp4 = (Scheme::Nvfp4, Scheme::Nvfp4);
        let (pair, wanted) = match kind {
            Kind::Rows => (ROWS_BY_ROWS, None),
            Kind::SmallM => (ROWS_BY_ROWS, Some(Formulation::SmallM)),
            Kind::Sm90 => (BLOCKS, Some(Formulation::Sm90)),
            Kind::Repeated => (BLOCKS, Some(Formulation::RepeatedScales)),
            Kind::Codes => (nvfp4, Some(Formulation::SmallM)),
            Kind::Kept | Kind::Scratch => (nvfp4, Some(Formulation::DequantizedBf16)),
        };
        let mut rng = Noise::new(101);
        let Operands { a, b, .. } = Operands::new(handle, &mut rng, SHAPE, pair);
        if kind == Kind::Kept {
            derive(handle, Derived::Kept, &b);
        }
        let desc = GemmDesc::new(m, n, k, a.scheme(), b.scheme(), DType::Bf16).with_kept(b.kept());
        let desc = desc.with_epilogue(Epilogue { bias: Some(DType::Bf16), ..Epilogue::default() });
        let offered = offered(handle, &desc);
        let Some(formulation) = wanted.or(offered.first().copied()).filter(|wanted| offered.contains(wanted)) else {
            println!("skipped: {} offers no {kind:?} product of {pair:?}", handle.device());
            return None;
        };
        let mut plan = plan(handle, &desc, formulation);
        plan.prepare(handle, &b).unwrap();
        let bias: Vec<f32> = (0..n).map(|_| round_to(DType::Bf16, rng.normal())).collect();
        let bias = handle.upload(&bytes_of(DType::Bf16, &bias)).unwrap();
        let (x, d) = (handle.alloc(m * k * 4).unwrap(), handle.alloc(m * n * 2).unwrap());
        Some(Self { x, bias, d, a, b, plan })
    }

    pub fn enqueue(&mut self, handle: &Handle) -> Result<(), Error> {
        let [m, n, k] = SHAPE;
        let x = MatRef::new(&self.x, DType::F32, m, k)?;
        handle.quantize_into(&x, Recipe::new(self.a.scheme()), QuantizeTo::Plain(&mut self.a))?;
        let d = MatMut::new(&mut self.d, DType::Bf16, m, n)?;
        let bias = VecRef::new(&self.bias, DType::Bf16, n)?;
        self.plan.execute(handle, GemmArgs::new(&self.a, &self.b, d).bias(bias))
    }

    /// D of a call outside of graphs with these activations. They stay in X, and D is poisoned again.
    pub fn eager(&mut self, handle: &Handle, x: &[u8]) -> Vec<u8> {
        handle.write(&mut self.x.view_mut(), x).unwrap();
        fill(handle, &mut self.d);
        self.enqueue(handle).unwrap();
        let d = handle.read_bytes(&self.d.view()).unwrap();
        fill(handle, &mut self.d);
        d
    }

    /// Bytes of every allocation that is given back when all but D is dropped.
    pub fn allocations(&self, handle: &Handle) -> Vec<usize> {
        let parts = |q: &QuantMatrix| q.codes().len() + q.scales().len() + q.block_scales().len();
        let derived = self.b.device_bytes() - parts(&self.b);
        let all = [parts(&self.a), parts(&self.b), derived, self.x.len(), self.bias.len(), handle.scratch_bytes()];
        all.into_iter().filter(|bytes| *bytes > 0).collect()
    }
}

/// Three sets of activations.
pub fn activations() -> [Vec<u8>; 3] {
    let [m, _, k] = SHAPE;
    let mut rng = Noise::new(102);
    [(); 3].map(|()| bytes_of(DType::F32, tiled(&mut rng, m, k).iter()))
}

pub fn fill(handle: &Handle, buffer: &mut DeviceBuffer) {
    let poison = vec![0xFFu8; buffer.len()];
    handle.write(&mut buffer.view_mut(), &poison).unwrap();
}

/// Buffers of 0xFF bytes where memory of these sizes was given back, several of each.
pub struct Poison(pub Vec<CudaSlice<u8>>);

impl Poison {
    pub fn new(handle: &Handle, sizes: &[usize]) -> Self {
        let each = |size: &usize| [(); 8].map(|()| poisoned(handle, *size));
        Self(sizes.iter().flat_map(each).collect())
    }

    /// Panics if somebody wrote into one.
    pub fn check(&self, handle: &Handle, words: &str) {
        let whole = |buffer| handle.stream().clone_dtoh(buffer).unwrap().iter().all(|byte| *byte == 0xFF);
        assert!(self.0.iter().all(whole), "{words}: the graph writes to memory that was given back");
    }
}

/// What is left of a call after its capture.
pub struct Left {
    /// `None`: dropped too.
    pub x: Option<DeviceBuffer>,
    pub d: DeviceBuffer,
    /// B without what was derived from it.
    pub b: Option<QuantMatrix>,
    pub rest: Vec<Poison>,
}

/// Captures a call, lets `lose` drop what it was captured from, and launches the graph three times.
pub fn graph_outlives<G>(
    kind: Kind,
    capture: impl FnOnce(&Handle, &mut Call) -> G,
    launch: impl Fn(&Handle, &G),
    lose: impl FnOnce(&Handle, Call) -> Left,
) {
    let Some(handle) = handle() else { return };
    let Some(mut call) = Call::new(&handle, kind) else { return };
    let sets = activations();
    let want = sets.each_ref().map(|x| call.eager(&handle, x));
    assert!(want[0] != want[1] && want[1] != want[2], "other activations, same product");
    handle.write(&mut call.x.view_mut(), &sets[0]).unwrap();
    let graph = capture(&handle, &mut call);
    let untouched = handle.read_bytes(&call.d.view()).unwrap();
    assert!(untouched.iter().all(|byte| *byte == 0xFF), "{kind:?}: written during capture");
    let allocations = call.allocations(&handle);
    let Left { mut x, mut d, b, mut rest } = lose(&handle, call);
    rest.push(Poison::new(&handle, &allocations));
    for (number, set) in sets.iter().enumerate() {
        // Without X the graph goes on with what lay there.
        let want = match &mut x {
            Some(x) => {
                handle.write(&mut x.view_mut(), set).unwrap();
                &want[number]
            }
            None => &want[0],
        };
        fill(&handle, &mut d);
        launch(&handle, &graph);
        assert!(handle.read_bytes(&d.view()).unwrap() == *want, "{kind:?}: launch {number}");
    }
    rest.iter().for_each(|poison| poison.check(&handle, &format!("{kind:?}")));
    // A graph gives back what it owns, and the handle goes on.
    drop((graph, b));
    let mut again = Call::new(&handle, kind).unwrap();
    assert!(again.eager(&handle, &sets[1]) == want[1], "{kind:?}: a call after the graph is gone");
}

pub fn all_but_x_and_d(_: &Handle, Call { x, d, .. }: Call) -> Left {
    Left { x: Some(x), d, b: None, rest: Vec::new() }
}

pub fn all_but_d(_: &Handle, Call { d, .. }: Call) -> Left {
    Left { x: None, d, b: None, rest: Vec::new() }
}

/// A handle, a call on it that has run once, its activations, and the D that they give.
pub fn ready(kind: Kind) -> Option<(Handle, Call, Vec<u8>, Vec<u8>)> {
    let handle = handle()?;
    let mut call = Call::new(&handle, kind)?;
    let [set, ..] = activations();
    let want = call.eager(&handle, &set);
    Some((handle, call, set, want))
}

/// A call, a graph of it, and what both give.
pub fn works(handle: &Handle, call: &mut Call, set: &[u8], want: &[u8], words: &str) {
    assert!(call.eager(handle, set) == want, "{words}: an eager call");
    let graph = handle.capture(|| call.enqueue(handle)).unwrap_or_else(|e| panic!("{words}: a capture: {e}"));
    launched(handle, &graph, call, want, words);
}

pub fn launched(handle: &Handle, graph: &CapturedGraph, call: &mut Call, want: &[u8], words: &str) {
    fill(handle, &mut call.d);
    handle.launch(graph).unwrap();
    assert!(handle.read_bytes(&call.d.view()).unwrap() == want, "{words}: a graph");
    fill(handle, &mut call.d);
}

pub fn unsupported<T>(result: Result<T, Error>, words: &[&str]) {
    let error = refused(result, words);
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

/// A layer, a B of its own without anything derived from it, X for new weights, and D.
pub struct Weights {
    pub layer: Layer,
    pub b: QuantMatrix,
    pub x: DeviceBuffer,
    pub sets: [Vec<u8>; 3],
    pub d: DeviceBuffer,
}

impl Weights {
    pub fn new(handle: &Handle, derived: Derived) -> Option<Self> {
        let layer = Layer::new(handle, derived)?;
        let (_, sets) = layer.weights(handle);
        let b = QuantMatrix::from_host(handle, &layer.ops.host_b).unwrap();
        let (x, d) = (handle.alloc(sets[0].len()).unwrap(), handle.alloc(layer.ops.a.rows() * b.rows() * 2).unwrap());
        Some(Self { layer, b, x, sets, d })
    }

    /// Makes what the product reads beside B.
    pub fn derive(&mut self, handle: &Handle) {
        derive(handle, self.layer.derived, &self.b);
        self.layer.plan.prepare(handle, &self.b).unwrap();
    }

    pub fn set(&mut self, handle: &Handle, launch: usize) {
        handle.write(&mut self.x.view_mut(), &self.sets[launch]).unwrap();
    }

    /// The weights in X as a matrix that no graph knows.
    pub fn fresh(&self, handle: &Handle) -> QuantMatrix {
        let x = MatRef::new(&self.x, DType::F32, self.b.rows(), self.b.cols()).unwrap();
        handle.quantize(&x, Recipe::new(self.b.scheme())).unwrap()
    }

    /// What the product gives with that matrix, from which everything is derived now.
    pub fn want(&mut self, handle: &Handle, fresh: &QuantMatrix) -> Vec<u8> {
        self.layer.with(handle, fresh).bytes
    }

    pub fn quantize(&mut self, handle: &Handle) -> Result<(), Error> {
        let x = MatRef::new(&self.x, DType::F32, self.b.rows(), self.b.cols())?;
        handle.quantize_into(&x, Recipe::new(self.b.scheme()), QuantizeTo::Plain(&mut self.b))
    }

    /// The product, and nothing before it.
    pub fn multiply(&mut self, handle: &Handle) -> Result<(), Error> {
        let d = MatMut::new(&mut self.d, DType::Bf16, self.layer.ops.a.rows(), self.b.rows())?;
        self.layer.plan.execute(handle, GemmArgs::new(&self.layer.ops.a, &self.b, d))
    }

    /// D of work that is enqueued by this.
    pub fn product(&mut self, handle: &Handle, enqueue: impl FnOnce(&mut Self) -> Result<(), Error>) -> Vec<u8> {
        fill(handle, &mut self.d);
        enqueue(self).unwrap();
        handle.read_bytes(&self.d.view()).unwrap()
    }
}

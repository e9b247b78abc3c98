//! [`Bf16Product`]: products of BF16 matrices by cuBLASLt, each as it lies in memory or transposed.

use std::num::NonZeroUsize;

use lru::LruCache;

use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::gemm::call::ALIGNMENT;
use crate::gpu::gemm::desc::Accumulate;
use crate::gpu::handle::Handle;
use crate::gpu::lt::quirks::{self, Problem, Scaling};
use crate::gpu::lt::{
    self, Algo, Compute, DataType, EpilogueKind, Factors, Heuristic, Layouts, MatmulCall, MatmulDesc, MatrixLayout,
    Operand, PointerAttr, Pointers, Preference, Reduction, Transpose, attr,
};
use crate::gpu::matrix::{MatMut, MatRef, VecRef};

/// How an operand lies in memory, row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lies {
    /// What the product contracts over is along its rows: A is m x k, B is n x k.
    AlongK,
    /// It is along its columns: A is k x m, B is k x n.
    AcrossK,
}

impl Lies {
    /// Rows and columns in memory of an operand with so many outer elements.
    fn shape(self, outer: usize, k: usize) -> [usize; 2] {
        match self {
            Self::AlongK => [outer, k],
            Self::AcrossK => [k, outer],
        }
    }
}

/// One problem: `D = A B^T + beta * D + bias` of BF16 matrices, D `m x n` in BF16 or F32. Strides count elements from row to row in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Bf16Desc {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: (Lies, usize),
    pub(crate) b: (Lies, usize),
    pub(crate) out: DType,
    pub(crate) out_stride: usize,
    /// The type of a bias, one number for each column of D.
    pub(crate) bias: Option<DType>,
    pub(crate) accumulate: Accumulate,
}

impl Bf16Desc {
    /// A m x k, B n x k and D m x n in BF16, all packed.
    pub(crate) fn packed(m: usize, n: usize, k: usize) -> Self {
        Self {
            m,
            n,
            k,
            a: (Lies::AlongK, k),
            b: (Lies::AlongK, k),
            out: DType::Bf16,
            out_stride: n,
            bias: None,
            accumulate: Accumulate::Replace,
        }
    }

    /// The sizes that cuBLASLt can take: those of quantized products (`GemmDesc::check`).
    fn check_sizes(&self) -> Result<()> {
        const LIMIT: usize = i32::MAX as usize - 512;
        let row = |stride: usize, dtype: DType| stride.saturating_mul(dtype.bytes());
        for (operand, what, value) in [
            ("problem", "m", self.m),
            ("problem", "n", self.n),
            ("problem", "k", self.k),
            ("A", "bytes from row to row", row(self.a.1, DType::Bf16)),
            ("B", "bytes from row to row", row(self.b.1, DType::Bf16)),
            ("D", "bytes from row to row", row(self.out_stride, self.out)),
        ] {
            if value > LIMIT {
                let rule = format!("must be at most {LIMIT}");
                return Err(Error::shape(operand, format!("{what} = {value}"), rule, "split the product"));
            }
        }
        Ok(())
    }
}

/// A problem with cuBLASLt's algorithms for it. Works on the handle that it was made for.
pub(crate) struct Bf16Product {
    problem: Bf16Desc,
    matmul: MatmulDesc,
    layouts: Layouts,
    algos: Vec<Algo>,
    chosen: usize,
    handle_id: u64,
}

/// The one place of the row-major swap: cuBLASLt is column-major and sees `Dᵀ = B Aᵀ`, so that B goes first and m, n swap. What lies along
/// k in rows lies there in columns of k elements. `placeholder` stands for addresses that are not known yet.
fn setup(placeholder: u64, problem: &Bf16Desc) -> Result<(MatmulDesc, Layouts)> {
    let &Bf16Desc { m, n, k, a, b, out, out_stride, bias, .. } = problem;
    let mut matmul = MatmulDesc::new(Compute::F32, DataType::F32)?;
    matmul.set(attr::TransA, if b.0 == Lies::AlongK { Transpose::Yes } else { Transpose::No })?;
    matmul.set(attr::TransB, if a.0 == Lies::AlongK { Transpose::No } else { Transpose::Yes })?;
    if let Some(bias) = bias {
        matmul.set(attr::Epilogue, EpilogueKind::Bias)?;
        matmul.set(attr::BiasDataType, DataType::from(bias))?;
        matmul.expect_pointers(&[PointerAttr::Bias], placeholder)?;
    }
    let operand = |(lies, stride): (Lies, usize), outer| {
        let [rows, cols] = lies.shape(outer, k);
        MatrixLayout::new(DataType::Bf16, cols, rows, stride)
    };
    let result = || MatrixLayout::new(DataType::from(out), n, m, out_stride);
    Ok((matmul, Layouts { a: operand(b, n)?, b: operand(a, m)?, c: result()?, d: result()? }))
}

impl Bf16Product {
    /// Asks for up to `candidates` algorithms. `reduction` says in what split sums are added; `None`: as the library likes.
    pub(crate) fn new(
        handle: &Handle,
        problem: &Bf16Desc,
        candidates: usize,
        reduction: Option<Reduction>,
    ) -> Result<Self> {
        problem.check_sizes()?;
        let &Bf16Desc { m, n, k, .. } = problem;
        let (matmul, layouts) = setup(handle.placeholder(), problem)?;
        let lt = handle.lt()?;
        let (version, known) = (lt.version(), known(handle, problem));
        let refused = |reason: String| {
            let what = format!("the BF16 product {m} x {n} x {k}");
            Err(Error::unsupported(what, reason, "use n and k that are multiples of 8, or another cuBLAS"))
        };
        if let Some(quirk) = quirks::refuse(version, &known) {
            return refused(format!("cuBLASLt {version}: {} ({})", quirk.effect, quirk.source));
        }
        // Where all that split k are known to fail, no workspace leaves those that do not split.
        let mut reason = String::new();
        for workspace in [handle.workspace().bytes, 0] {
            let mut preference = Preference::new()?;
            preference.workspace_bytes(workspace)?;
            // As for the products that are compared with it; the library would take 256 for granted.
            for operand in [Operand::A, Operand::B, Operand::C, Operand::D] {
                preference.alignment(operand, ALIGNMENT)?;
            }
            reduction.map_or(Ok(()), |reduction| preference.reduction(reduction))?;
            let offered = match lt::heuristic(lt, &matmul, &layouts, &preference, candidates.max(1))? {
                Heuristic::Offered(algos) => algos,
                Heuristic::Refused(_) if !reason.is_empty() => return refused(reason),
                Heuristic::Refused(status) => return refused(format!("cuBLASLt offers no algorithm: {status}")),
            };
            let mut algos = Vec::with_capacity(offered.len());
            for algo in offered {
                let config = algo.config()?;
                match quirks::drops(version, &known, config.id, config.split_k) {
                    None => algos.push(algo),
                    Some(quirk) => {
                        let effect = quirk.effect;
                        reason = format!("cuBLASLt {version} offers only algorithms that are known to fail: {effect}");
                    }
                }
            }
            if !algos.is_empty() {
                return Ok(Self { problem: *problem, matmul, layouts, algos, chosen: 0, handle_id: handle.id() });
            }
        }
        refused(reason)
    }

    /// Enqueues the product. Allocates nothing and waits for nothing.
    pub(crate) fn execute(
        &mut self,
        handle: &Handle,
        a: &MatRef<'_>,
        b: &MatRef<'_>,
        d: &mut MatMut<'_>,
        bias: Option<&VecRef<'_>>,
    ) -> Result<()> {
        handle.check_own(self.handle_id, "running a BF16 product")?;
        let Bf16Desc { m, n, k, out, out_stride, accumulate, .. } = self.problem;
        let ([a_rows, a_cols], [b_rows, b_cols]) = (self.problem.a.0.shape(m, k), self.problem.b.0.shape(n, k));
        let (a_stride, b_stride) = (self.problem.a.1, self.problem.b.1);
        let operands = [
            ("A", a.rows(), a.cols(), a.row_stride(), a.dtype(), [a_rows, a_cols, a_stride], DType::Bf16),
            ("B", b.rows(), b.cols(), b.row_stride(), b.dtype(), [b_rows, b_cols, b_stride], DType::Bf16),
            ("D", d.rows(), d.cols(), d.row_stride(), d.dtype(), [m, n, out_stride], out),
        ];
        for (operand, rows, cols, stride, dtype, [want_rows, want_cols, want_stride], want_dtype) in operands {
            if (rows, cols, stride, dtype) != (want_rows, want_cols, want_stride, want_dtype) {
                return Err(Error::shape(
                    operand,
                    format!("{rows} x {cols} {dtype}, row stride {stride}"),
                    format!("must be {want_rows} x {want_cols} {want_dtype}, row stride {want_stride}"),
                    "plan the product for these operands",
                ));
            }
        }
        let stream = handle.queue();
        let order = stream.order();
        let (a, b, d) = (a.data().at(&order)?, b.data().at(&order)?, d.data_mut().at(&order)?);
        let bias = bias.map(|bias| bias.data().at(&order)).transpose()?;
        lt::matmul(MatmulCall {
            handle: handle.lt()?,
            desc: &mut self.matmul,
            layouts: &self.layouts,
            algo: &self.algos[self.chosen],
            factors: Factors::Host { alpha: 1.0, beta: if accumulate == Accumulate::Add { 1.0 } else { 0.0 } },
            a: &b,
            b: &a,
            c: None,
            d: &d,
            pointers: Pointers { bias: bias.as_ref(), ..Pointers::default() },
            workspace: &handle.workspace(),
            stream,
        })
    }

    /// The place of the algorithm in use.
    pub(crate) fn chosen(&self) -> usize {
        self.chosen
    }

    /// Number of algorithms cuBLASLt offered.
    pub(crate) fn candidates(&self) -> usize {
        self.algos.len()
    }

    /// Takes candidate `index` from now on (counted modulo [`Bf16Product::candidates`]).
    pub(crate) fn choose(&mut self, index: usize) {
        self.chosen = index % self.algos.len();
    }
}

/// The products of a handle. The longest unused is forgotten first.
struct Bf16State(LruCache<Bf16Desc, Bf16Product>);

/// As many as there are plans of quantized products.
const CACHED: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Algorithms that are asked for: the first that is not known to fail is used.
const CANDIDATES: usize = 8;

impl Default for Bf16State {
    fn default() -> Self {
        Self(LruCache::new(CACHED))
    }
}

impl Handle {
    /// The product, planned at the first call for each problem and cached. Later calls allocate nothing and wait for nothing, also inside
    /// graph capture.
    pub(crate) fn bf16_gemm(
        &self,
        problem: &Bf16Desc,
        a: &MatRef<'_>,
        b: &MatRef<'_>,
        d: &mut MatMut<'_>,
        bias: Option<&VecRef<'_>>,
    ) -> Result<()> {
        let mut state = self.slot::<Bf16State>();
        if let Some(product) = state.0.get_mut(problem) {
            return product.execute(self, a, b, d, bias);
        }
        drop(state);
        self.refuse_first_in_capture("the first BF16 product of a problem, or of one that was forgotten,")?;
        let mut product = self.plan_bf16(problem)?;
        product.execute(self, a, b, d, bias)?;
        self.slot::<Bf16State>().0.put(*problem, product);
        Ok(())
    }

    /// The product, for whoever keeps it.
    pub(crate) fn plan_bf16(&self, problem: &Bf16Desc) -> Result<Bf16Product> {
        Bf16Product::new(self, problem, CANDIDATES, Some(Reduction::ComputeType))
    }

    /// Whether cuBLASLt may add a bias to this product.
    pub(crate) fn may_add_bias(&self, problem: &Bf16Desc) -> bool {
        self.lt_version().is_some_and(|version| quirks::unfuse(version, &known(self, problem)).is_none())
    }
}

/// The problem as the ledger of known bugs sees it.
fn known(handle: &Handle, problem: &Bf16Desc) -> Problem {
    let &Bf16Desc { m, n, k, a, b, out, out_stride, bias, accumulate } = problem;
    let operand = |(lies, stride): (Lies, usize), outer| lies.shape(outer, k)[0] * stride * DType::Bf16.bytes();
    let largest = [operand(a, m), operand(b, n), m * out_stride * out.bytes()];
    Problem {
        compute_capability: handle.device().compute_capability,
        m,
        n,
        k,
        scaling: Scaling::Unscaled,
        has_bias: bias.is_some(),
        has_activation: false,
        has_c: accumulate == Accumulate::Add,
        fp32_out: out == DType::F32,
        largest_bytes: largest.into_iter().max().unwrap_or(0) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::lt::tests::found;

    #[test]
    fn operands_lie_along_or_across_what_is_contracted() {
        assert_eq!((Lies::AlongK.shape(5, 7), Lies::AcrossK.shape(5, 7)), ([5, 7], [7, 5]));
        let packed = Bf16Desc::packed(3, 16, 32);
        assert_eq!((packed.a, packed.b, packed.out_stride), ((Lies::AlongK, 32), (Lies::AlongK, 32), 16));
    }

    #[test]
    fn sizes_that_cublaslt_miscounts_are_refused() {
        let (packed, wide) = (Bf16Desc::packed(3, 16, 32), 1 << 30);
        assert!(packed.check_sizes().is_ok());
        for (problem, operand) in [
            (Bf16Desc { m: 1 << 31, ..packed }, "problem"),
            (Bf16Desc { a: (Lies::AlongK, wide), ..packed }, "A"),
            (Bf16Desc { b: (Lies::AcrossK, wide), ..packed }, "B"),
            (Bf16Desc { out_stride: wide / 2, out: DType::F32, ..packed }, "D"),
        ] {
            let said = problem.check_sizes().unwrap_err().to_string();
            assert!(said.starts_with(operand) && said.contains("2147483648") && said.contains("2147483135"), "{said}");
        }
        assert!(Bf16Desc { out_stride: wide / 2, ..packed }.check_sizes().is_ok());
    }

    /// What cuBLASLt holds: its A is our B as n x k, its B our A as k x m, its D is n x m.
    #[test]
    fn every_way_to_lie_is_the_same_product() {
        if found().is_none() {
            return;
        }
        let (m, n, k) = (5, 48, 32);
        for (a, b) in
            [Lies::AlongK, Lies::AcrossK].into_iter().flat_map(|a| [Lies::AlongK, Lies::AcrossK].map(|b| (a, b)))
        {
            let strides = [a.shape(m, k)[1] + 8, b.shape(n, k)[1] + 16];
            let problem = Bf16Desc {
                a: (a, strides[0]),
                b: (b, strides[1]),
                out: DType::F32,
                out_stride: n + 4,
                bias: Some(DType::F32),
                accumulate: Accumulate::Add,
                ..Bf16Desc::packed(m, n, k)
            };
            let (matmul, layouts) = setup(4096, &problem).unwrap();
            let read = |layout: &MatrixLayout, transpose: u32| {
                let (_, rows, cols, stride) = layout.held().unwrap();
                (if transpose == Transpose::Yes as u32 { (cols, rows) } else { (rows, cols) }, stride)
            };
            let (first, second) = (matmul.get(attr::TransA).unwrap(), matmul.get(attr::TransB).unwrap());
            assert_eq!(read(&layouts.a, first), ((n as u64, k as u64), strides[1] as u64), "{a:?} {b:?}");
            assert_eq!(read(&layouts.b, second), ((k as u64, m as u64), strides[0] as u64), "{a:?} {b:?}");
            assert_eq!(layouts.d.held().unwrap(), (DataType::F32 as u32, n as u64, m as u64, n as u64 + 4));
            assert_eq!(matmul.get(attr::Epilogue).unwrap(), EpilogueKind::Bias as u32);
        }
    }

    #[test]
    fn products_can_move_to_another_thread() {
        fn send<T: Send>() {}
        send::<Bf16State>();
    }
}

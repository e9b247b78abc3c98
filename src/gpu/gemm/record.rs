//! [`TuneRecord`]: a measured choice that survives the process. `table`: many of them in one JSON file. `problem`: what a record is for, in words.
//!
//! A record names the algorithm of the product step: cuBLASLt's, whose opaque bytes mean something to the same library
//! version only. So it is refused, with the field that differs, on another GPU, library version or problem. Nothing here
//! needs a GPU.

mod problem;
pub(crate) mod table;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::kernels::{FEW_ROWS, Sm90Config, SmallMConfig};
use problem::ProblemRecord;

/// Layout of the JSON. Version 1, which knew cuBLASLt's algorithms only, is read too; a record of another is refused.
const VERSION: u32 = 2;

/// Where something was measured: the part of a record that, apart from the driver, must equal the running machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Name of the GPU.
    pub gpu: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Number of multiprocessors.
    pub sm_count: u32,
    /// cuBLASLt version: 130100 is 13.1.0. `None` where there is none.
    pub cublaslt: Option<u32>,
    /// CUDA version of the driver: 13000 is 13.0. It is recorded, and a record of another driver still holds: an
    /// algorithm's bytes belong to the library.
    pub driver: u32,
}

impl Environment {
    /// True if a record of one holds in the other: everything but the driver is equal.
    fn admits(&self, other: &Self) -> bool {
        Self { driver: other.driver, ..self.clone() } == *other
    }
}

/// The algorithm of a product, as a record names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Algorithm {
    /// One of cuBLASLt's.
    CublasLt(LtAlgorithm),
    /// Our product for sm_90, in this configuration.
    Sm90(Sm90Config),
    /// Our product of few rows, in this configuration.
    #[serde(rename = "small-m")]
    SmallM(SmallMConfig),
}

impl Algorithm {
    /// Whether calls of so many rows are links of chains, for which other parts of k are planned than for calls alone (`chain_rules`).
    pub(crate) fn is_of_links(&self, m: usize) -> bool {
        matches!(self, Self::SmallM(config) if m <= FEW_ROWS && !config.block().takes_passes())
    }
}

/// An algorithm of cuBLASLt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LtAlgorithm {
    /// The 64 bytes of `cublasLtMatmulAlgo_t` as hexadecimal digits: JSON numbers do not hold 64 bits everywhere.
    pub(crate) words: String,
    /// The same in words, for people.
    pub(crate) config: String,
}

impl LtAlgorithm {
    /// Tile, stages, splits of k and the other numbers that it is made of, in words.
    pub fn config(&self) -> &str {
        &self.config
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CublasLt(lt) => write!(f, "cuBLASLt {}", lt.config()),
            Self::Sm90(config) => write!(f, "sm90 {config}"),
            Self::SmallM(config) => write!(f, "small-m {config}"),
        }
    }
}

/// A measured choice for one problem: formulation, finish and algorithm, and where it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RecordFile")]
pub struct TuneRecord {
    version: u32,
    environment: Environment,
    problem: ProblemRecord,
    formulation: Formulation,
    finish: Finish,
    algorithm: Algorithm,
    workspace_bytes: usize,
    measured_us: Option<f64>,
}

/// A record of any version, as it lies in a file.
#[derive(Deserialize)]
struct RecordFile {
    version: u32,
    environment: Environment,
    problem: ProblemRecord,
    formulation: Formulation,
    finish: Finish,
    /// In version 1 the digits alone, with `algorithm_config` beside them.
    algorithm: serde_json::Value,
    algorithm_config: Option<String>,
    workspace_bytes: usize,
    measured_us: Option<f64>,
}

impl TryFrom<RecordFile> for TuneRecord {
    type Error = String;

    fn try_from(file: RecordFile) -> std::result::Result<Self, String> {
        let algorithm = match (file.version, file.algorithm, file.algorithm_config) {
            (1, serde_json::Value::String(words), Some(config)) => Algorithm::CublasLt(LtAlgorithm { words, config }),
            (1, ..) => return Err("version 1 has its algorithm as digits, and algorithm_config beside it".to_string()),
            (_, algorithm, _) => serde_json::from_value(algorithm).map_err(|e| format!("algorithm: {e}"))?,
        };
        Ok(Self {
            version: if file.version == 1 { VERSION } else { file.version },
            environment: file.environment,
            problem: file.problem,
            formulation: file.formulation,
            finish: file.finish,
            algorithm,
            workspace_bytes: file.workspace_bytes,
            measured_us: file.measured_us,
        })
    }
}

/// What a record says, apart from where it holds.
pub(crate) struct Choice {
    pub(crate) formulation: Formulation,
    pub(crate) finish: Finish,
    pub(crate) algorithm: Algorithm,
    pub(crate) workspace_bytes: usize,
    pub(crate) measured_us: Option<f64>,
}

fn refused(reason: String) -> Error {
    Error::Record { reason, remedy: "measure again here: GemmPlan::autotune, or `scaled-gemm tune`".to_string() }
}

impl TuneRecord {
    pub(crate) fn new(environment: Environment, desc: &GemmDesc, choice: Choice) -> Self {
        Self {
            version: VERSION,
            environment,
            problem: desc.into(),
            formulation: choice.formulation,
            finish: choice.finish,
            algorithm: choice.algorithm,
            workspace_bytes: choice.workspace_bytes,
            measured_us: choice.measured_us,
        }
    }

    /// Where it was measured.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The chosen formulation.
    pub fn formulation(&self) -> Formulation {
        self.formulation
    }

    /// How the chosen formulation ends.
    pub fn finish(&self) -> Finish {
        self.finish
    }

    /// The algorithm of the product; it shows its configuration in words.
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// Workspace that the algorithm uses.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Median time of one call in microseconds, if it was measured and not only chosen.
    pub fn measured_us(&self) -> Option<f64> {
        self.measured_us
    }

    /// Refuses a record of another layout, GPU, library version or problem.
    ///
    /// # Errors
    /// [`Error::Record`] naming the first field that differs, with both values.
    pub fn check(&self, here: &Environment, desc: &GemmDesc) -> Result<()> {
        let there = &self.environment;
        let library = |version: Option<u32>| version.map_or("none".to_string(), |version| version.to_string());
        let here_and_there = [
            ("version", self.version.to_string(), VERSION.to_string()),
            ("gpu", there.gpu.clone(), here.gpu.clone()),
            ("compute_capability", format!("{:?}", there.compute_capability), format!("{:?}", here.compute_capability)),
            ("sm_count", there.sm_count.to_string(), here.sm_count.to_string()),
            ("cublaslt", library(there.cublaslt), library(here.cublaslt)),
        ];
        let problems = self.problem.fields().into_iter().zip(ProblemRecord::from(desc).fields());
        let problems = problems.map(|((name, found), (_, wanted))| (name, found, wanted));
        match here_and_there.into_iter().chain(problems).find(|(_, found, wanted)| found != wanted) {
            None => {
                if there.driver != here.driver {
                    tracing::info!(record = there.driver, here = here.driver, "a tuning record of another driver");
                }
                Ok(())
            }
            Some((name, found, wanted)) => Err(refused(format!("{name} is {found} in the record and {wanted} here"))),
        }
    }

    /// The record as one JSON object.
    ///
    /// # Errors
    /// [`Error::Record`] if a time is not a finite number.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|e| refused(format!("it cannot be written as JSON: {e}")))
    }

    /// A record from JSON. Only its form is checked here; see [`TuneRecord::check`].
    ///
    /// # Errors
    /// [`Error::Record`] with the place and reason.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| refused(format!("not a record: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::{Activation, Epilogue};
    use crate::format::{DType, Fp8Format, Operand, Scheme};
    use crate::gpu::gemm::desc::Accumulation;
    use crate::gpu::kernels::{SmallMBlock, SmallMOperands};
    use crate::gpu::matrix::derived::KeptWeights;
    use table::TuneTable;

    pub(super) fn environment() -> Environment {
        Environment {
            gpu: "NVIDIA H200".into(),
            compute_capability: (9, 0),
            sm_count: 132,
            cublaslt: Some(130100),
            driver: 13000,
        }
    }

    pub(super) fn desc() -> GemmDesc {
        let (a, b) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E5M2));
        let epilogue = Epilogue { bias: Some(DType::Bf16), activation: Activation::Relu, residual: None };
        GemmDesc::new(16, 4096, 7168, a, b, DType::Bf16).with_epilogue(epilogue)
    }

    fn algorithm() -> Algorithm {
        let words = format!("{}{}", "ffffffffffffffff", "0123456789abcdef".repeat(7));
        Algorithm::CublasLt(LtAlgorithm { words, config: "algorithm 66, tile 20".into() })
    }

    pub(super) fn record() -> TuneRecord {
        TuneRecord::new(
            environment(),
            &desc(),
            Choice {
                formulation: Formulation::RepeatedScales,
                finish: Finish::Fused,
                algorithm: algorithm(),
                workspace_bytes: 1 << 20,
                measured_us: Some(11.25),
            },
        )
    }

    #[test]
    fn a_record_survives_json_with_every_bit() {
        let record = record();
        let back = TuneRecord::from_json(&record.to_json().unwrap()).unwrap();
        assert_eq!(back, record);
        assert_eq!(
            (back.algorithm(), back.algorithm().to_string().as_str()),
            (&algorithm(), "cuBLASLt algorithm 66, tile 20")
        );
        assert_eq!((back.formulation(), back.finish()), (Formulation::RepeatedScales, Finish::Fused));
        back.check(&environment(), &desc()).unwrap();
    }

    #[test]
    fn a_configuration_of_ours_survives_json_too() {
        let in_memory = SmallMBlock::ALL.into_iter().flat_map(SmallMConfig::in_memory);
        for config in SmallMOperands::ALL.into_iter().flat_map(SmallMConfig::all).chain(in_memory) {
            let algorithm = Algorithm::SmallM(config);
            let ours = TuneRecord { formulation: Formulation::SmallM, algorithm, workspace_bytes: 0, ..record() };
            assert_eq!(TuneRecord::from_json(&ours.to_json().unwrap()).unwrap(), ours);
            assert_eq!(ours.algorithm().to_string(), format!("small-m {config}"));
        }
        for config in Sm90Config::ALL {
            let ours = TuneRecord {
                formulation: Formulation::Sm90,
                algorithm: Algorithm::Sm90(config),
                workspace_bytes: 0,
                ..record()
            };
            let text = ours.to_json().unwrap();
            assert!(text.contains(&format!("\"sm90\": \"{config}\"")), "{text}");
            assert_eq!(TuneRecord::from_json(&text).unwrap(), ours);
            assert_eq!(ours.algorithm().to_string(), format!("sm90 {config}"));
            let unknown = TuneRecord::from_json(&text.replace(config.name(), "512x512")).unwrap_err().to_string();
            assert!(unknown.contains("512x512") && unknown.contains("128x128"), "{unknown}");
        }
    }

    #[test]
    fn another_machine_library_or_problem_is_refused_with_both_values() {
        let refusal = |e: &Environment, d: &GemmDesc| record().check(e, d).unwrap_err().to_string();
        let other = Environment { gpu: "NVIDIA L4".into(), ..environment() };
        assert!(refusal(&other, &desc()).contains("gpu is NVIDIA H200 in the record and NVIDIA L4 here"));
        let other = Environment { cublaslt: Some(130200), ..environment() };
        assert!(refusal(&other, &desc()).contains("cublaslt is 130100 in the record and 130200 here"));
        let other = Environment { sm_count: 114, ..environment() };
        assert!(refusal(&other, &desc()).contains("sm_count is 132"));
        let other = GemmDesc { m: 17, ..desc() };
        assert!(refusal(&environment(), &other).contains("m is 16 in the record and 17 here"));
        let other = desc().with_epilogue(Epilogue::default());
        assert!(refusal(&environment(), &other).contains("bias is bf16 in the record and none here"));
        let other = desc().with_accumulation(Accumulation::Fast);
        assert!(refusal(&environment(), &other).contains("accumulation is precise"));
        let other = desc().with_batch_invariant(true);
        assert!(refusal(&environment(), &other).contains("batch_invariant is false in the record and true here"));
        let other = desc().with_chained(true);
        assert!(refusal(&environment(), &other).contains("chained is false in the record and true here"));
    }

    #[test]
    fn broken_records_are_refused_not_believed() {
        assert!(TuneRecord::from_json("{").is_err());
        let text = record().to_json().unwrap();
        let unknown = TuneRecord::from_json(&text.replace("\"cublaslt\": {", "\"sm91\": {")).unwrap_err().to_string();
        assert!(unknown.contains("algorithm") && unknown.contains("sm91") && unknown.contains("cublaslt"), "{unknown}");
        let old = TuneRecord::from_json(&text.replacen("\"version\": 2", "\"version\": 9", 1)).unwrap();
        assert!(old.check(&environment(), &desc()).unwrap_err().to_string().contains("version is 9"));
        assert!(TuneRecord::from_json(&text.replace("repeated-scales", "magic")).is_err());
    }

    #[test]
    fn records_from_before_plain_operands_still_hold() {
        let text = record().to_json().unwrap();
        let says =
            ["a_stride", "kept", "b_order", "batch_invariant", "chained"].into_iter().any(|field| text.contains(field));
        assert!(!says, "written only where they say something: {text}");
        TuneRecord::from_json(&text).unwrap().check(&environment(), &desc()).unwrap();

        let bf16 = Operand::Plain(DType::Bf16);
        let packed = GemmDesc::new(16, 4096, 7168, bf16, Scheme::Nvfp4, DType::Bf16);
        let strided = packed.with_a_stride(8192).with_kept(KeptWeights::Dequantized(DType::Bf16));
        let choice = Choice {
            formulation: Formulation::DequantizedBf16,
            finish: Finish::Fused,
            algorithm: algorithm(),
            workspace_bytes: 0,
            measured_us: None,
        };
        let record = TuneRecord::new(environment(), &strided, choice);
        let text = record.to_json().unwrap();
        for part in ["\"a\": \"bf16\"", "\"a_stride\": 8192", "\"kept\": \"bf16\"", "\"dequantized-bf16\""] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let back = TuneRecord::from_json(&text).unwrap();
        assert_eq!(back, record);
        back.check(&environment(), &strided).unwrap();
        let refusal = |desc: &GemmDesc| back.check(&environment(), desc).unwrap_err().to_string();
        assert!(refusal(&strided.with_a_stride(7168)).contains("a_stride is 8192 in the record and 7168 here"));
        assert!(refusal(&strided.with_kept(KeptWeights::Nothing)).contains("kept is bf16 in the record and none here"));
    }

    #[test]
    fn records_of_version_1_still_hold() {
        let now = record().to_json().unwrap();
        let Algorithm::CublasLt(LtAlgorithm { words, config }) = algorithm() else { panic!("cuBLASLt's") };
        let mut old: serde_json::Value = serde_json::from_str(&now).unwrap();
        old["version"] = 1.into();
        old["algorithm"] = words.into();
        old["algorithm_config"] = config.into();
        let read = TuneRecord::from_json(&old.to_string()).unwrap();
        assert_eq!(read, record());
        read.check(&environment(), &desc()).unwrap();
        assert!(
            TuneTable::from_json(&format!("{{\"records\": [{old}]}}")).unwrap().find(&environment(), &desc()).is_some()
        );
        // The name of an algorithm belongs to the new version, and the digits alone to the old one.
        old["version"] = 2.into();
        assert!(TuneRecord::from_json(&old.to_string()).is_err());
        assert!(TuneRecord::from_json(&now.replacen("\"version\": 2", "\"version\": 1", 1)).is_err());
    }
}

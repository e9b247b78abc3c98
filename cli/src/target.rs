//! What weights are quantized to: by a recipe to what products read, or cast to a grouping that none reads.

use std::fmt;

use scaled_gemm::checkpoint::Dialect;
use scaled_gemm::{
    Basis, CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, CodeRounding, Error, Fp8Format, Fp8Scales,
    Recipe, Scheme,
};

use crate::args::QuantizeArgs;

/// How weights are quantized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    Recipe(Recipe),
    Cast(CastRecipe),
}

impl Target {
    /// The scheme, where products read the result.
    pub fn product(self) -> Option<Scheme> {
        match self {
            Self::Recipe(recipe) => Some(recipe.scheme()),
            Self::Cast(_) => None,
        }
    }

    /// What the result is, in words.
    pub fn scheme(self) -> String {
        match self {
            Self::Recipe(recipe) => recipe.scheme().to_string(),
            Self::Cast(recipe) => recipe.scheme().to_string(),
        }
    }

    pub fn format(self) -> CodeFormat {
        match self {
            Self::Recipe(recipe) => recipe.format(),
            Self::Cast(recipe) => recipe.scheme().format(),
        }
    }

    pub fn basis(self) -> Basis {
        match self {
            Self::Recipe(recipe) => recipe.basis(),
            Self::Cast(_) => Basis::Plain,
        }
    }

    /// What the number of rows must be a multiple of, or the matrix is left alone.
    pub fn row_multiple(self) -> usize {
        match self {
            Self::Recipe(recipe) => recipe.row_multiple(),
            Self::Cast(_) => 1,
        }
    }

    /// Bytes of codes and scales in a file.
    pub fn bytes(self, rows: usize, cols: usize) -> u64 {
        let bytes = match self {
            Self::Recipe(recipe) => {
                let scheme = recipe.scheme();
                let ([r, c], [b, s]) = (scheme.scale_grid(rows, cols), scheme.block_grid(rows, cols));
                rows * cols * scheme.spec().code_bits / 8 + 4 * r * c + b * s
            }
            Self::Cast(recipe) => recipe.scheme().code_bytes(rows, cols) + recipe.scheme().scale_bytes(rows, cols),
        };
        bytes as u64
    }

    /// True where codes are rounded at random.
    pub fn is_stochastic(self) -> bool {
        matches!(self, Self::Recipe(Recipe::Nvfp4(nv)) if nv.options().rounding != CodeRounding::Nearest)
    }

    /// True for schemes with one scale for the matrix, which is to be known before the first part.
    pub fn has_one_scale(self) -> bool {
        matches!(self.product(), Some(Scheme::Nvfp4 | Scheme::Fp8Tensor(_)))
    }

    /// True where that scale may be given, or shared with others: of transformed rows it is another one.
    pub fn has_whole(self) -> bool {
        self.has_one_scale() && self.basis() == Basis::Plain
    }
}

/// The rule, without the scheme.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recipe(recipe) => recipe.fmt(f),
            Self::Cast(recipe) => write!(f, "a cast, {} scales", recipe.numbers()),
        }
    }
}

impl QuantizeArgs {
    /// What the options describe, for the n-th matrix of a file.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options that exclude each other.
    pub fn target(&self, matrix: u64) -> scaled_gemm::Result<Target> {
        match self.group {
            Some(group) => self.cast(group).map(Target::Cast),
            None => {
                let of_casts = [("--scales", self.scales.is_some()), ("--transposed", self.transposed)];
                match of_casts.into_iter().find(|(_, given)| *given) {
                    None => self.recipe(matrix).map(Target::Recipe),
                    Some((option, _)) => Err(Error::unsupported(
                        format!("{option} with --recipe {}", self.recipe_name()),
                        "it belongs to casts",
                        "leave it out, or write --group in the place of --recipe",
                    )),
                }
            }
        }
    }

    fn cast(&self, group: CastGroup) -> scaled_gemm::Result<CastRecipe> {
        let refuse = |what: &str, reason: String, remedy: String| {
            Err(Error::unsupported(format!("{what} with --group {group}"), reason, remedy))
        };
        let of_recipes = [
            ("--recipe", self.recipe.is_some()),
            ("--preset", self.preset.is_some()),
            ("--mx-rounding", self.mx_rounding.is_some()),
            ("--four-over-six", self.four_over_six.is_some()),
            ("--error-math", self.error_math.is_some()),
            ("--e4m3-max", self.e4m3_max.is_some()),
            ("--tile-16x16", self.tile_16x16),
            ("--hadamard", self.hadamard),
            ("--stochastic", self.stochastic.is_some()),
            ("--fuse", !self.fuse.is_empty()),
            ("--no-fuse", self.no_fuse),
            ("--input-scales", self.input_scales.is_some()),
            ("--weight-amax", self.weight_amax.is_some()),
        ];
        if let Some((option, _)) = of_recipes.into_iter().find(|(_, given)| *given) {
            let [reason, remedy] = match option {
                "--recipe" => {
                    let reason = "a matrix is quantized by a recipe, or cast to a grouping";
                    [reason, "leave one of the two out, --recipe or --group"]
                }
                // (Without --group and a recipe in its place nothing says what to quantize to.)
                _ => {
                    let reason = "it belongs to recipes, and casts have one rule";
                    [reason, "leave it out, or write --recipe in the place of --group"]
                }
            };
            return refuse(option, reason.into(), remedy.into());
        }
        if self.format == Some(CodeFormat::E5M2) {
            // Of the same groups, where there is one.
            let recipe = match group {
                CastGroup::Group1x32 => "mxfp8",
                CastGroup::Group1x128 => "fp8-1x128",
                CastGroup::Tile128x128 => "fp8-128x128",
                _ => "fp8-row",
            };
            let remedy = format!(
                "take one of these, or --recipe {recipe} --format e5m2 or another recipe that has it (mxfp8 and all of fp8)"
            );
            return refuse("--format e5m2", "the rule of casts is for e4m3 and e2m1".into(), remedy);
        }
        let mut scheme = CastScheme::new(self.format.unwrap_or(CodeFormat::E4M3), group)?;
        scheme = scheme.with_scales(self.scales.unwrap_or_default());
        if self.transposed {
            scheme = scheme.transposed()?;
        }
        let recipe = CastRecipe::new(scheme);
        if self.power_of_two && recipe.numbers() == Fp8Scales::PowerOfTwo {
            let reason = format!("scales in {} are powers of two already", scheme.scales());
            return refuse("--power-of-two", reason, "leave it out".into());
        }
        let recipe = if self.power_of_two { recipe.power_of_two() } else { recipe };
        match self.dialect.filter(|dialect| *dialect != Dialect::Plain) {
            None => Ok(recipe),
            Some(dialect) => {
                let remedy = match published(recipe) {
                    Some(options) => format!("write --recipe {options}, or leave --dialect out"),
                    None => "leave it out, or write --dialect plain".into(),
                };
                refuse(&format!("--dialect {dialect}"), "no engine reads the tensors of a cast".into(), remedy)
            }
        }
    }
}

/// The options of a recipe that dialects have, and whose groups are those of a cast: of FP8 with the same codes and scales, too.
pub fn published(recipe: CastRecipe) -> Option<String> {
    let scheme = recipe.scheme();
    let fp8 = |name: &str| {
        let power = if recipe.numbers() == Fp8Scales::PowerOfTwo { " --power-of-two" } else { "" };
        format!("{name} --preset deepseek{power}, which has these codes and scales")
    };
    let is_e4m3 = scheme.format() == CodeFormat::Fp8(Fp8Format::E4M3);
    Some(match (scheme.group(), scheme.scales()) {
        _ if scheme.is_transposed() => return None,
        (CastGroup::Tile128x128, CastScales::RowMajor | CastScales::ColumnMajor) if is_e4m3 => fp8("fp8-128x128"),
        (CastGroup::Row, CastScales::RowMajor | CastScales::ColumnMajor) if is_e4m3 => fp8("fp8-row"),
        (CastGroup::Group1x32, CastScales::Ue8m0) if is_e4m3 => "mxfp8, which has these groups".into(),
        (CastGroup::Group1x32, CastScales::Ue8m0) => "mxfp4, which has these groups".into(),
        _ => return None,
    })
}

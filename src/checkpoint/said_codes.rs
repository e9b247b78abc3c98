//! Codes that the metadata speak of, whatever type they are stored in: those of another type are refused, and never passed over.

use safetensors::Dtype;

use super::cast_recipe::{StoredScheme, cast_scales, cast_scheme};
use super::header::{RECIPE_KEY, TensorInfo};
use super::listing::Listing;
use super::names::{CODES_ENDINGS, code_dtype, code_format, is_wide, scaled_by_name, tensors_of_experts};
use super::recipe::{Reading, dialect};
use crate::error::Result;

impl Listing {
    /// The matrix whose codes a tensor is by its name and the metadata.
    pub(super) fn said_matrix<'n>(&self, tensor: &'n str) -> Option<&'n str> {
        // Asked of every tensor: most files say nothing.
        if self.header.metadata.is_empty() {
            return None;
        }
        let is_said =
            |name: &str| self.written(name).is_some() && self.said_codes(name).is_some_and(|t| t.name == tensor);
        // Packed codes of their own type that lack scales are told by what looks for these.
        let is_packed = self.get(tensor).is_some_and(|t| t.dtype == Dtype::U8);
        let endings = CODES_ENDINGS.iter().filter(|suffix| suffix.is_empty() || !is_packed);
        endings.filter_map(|suffix| tensor.strip_suffix(suffix)).find(|name| is_said(name))
    }

    /// The tensors that may hold the codes of a matrix by their names.
    fn may_be_codes(&self, name: &str) -> impl Iterator<Item = &TensorInfo> {
        CODES_ENDINGS.iter().filter_map(move |suffix| self.ending(name, suffix))
    }

    /// The tensor that holds the codes of a matrix by its name.
    fn said_codes(&self, name: &str) -> Option<&TensorInfo> {
        self.may_be_codes(name).next()
    }

    /// How the metadata say that a matrix is quantized, whatever is there of it; the error is the reason, to follow its name.
    pub(super) fn said_scheme(&self, name: &str) -> Option<std::result::Result<StoredScheme, String>> {
        Some(scheme_of(self.written(name)?))
    }

    /// Refuses codes of a type that those of the scheme in the metadata do not have. What is FP8 of one kind in the place of the other is
    /// refused where its scales are looked at.
    pub(super) fn check_said_type(&self, name: &str) -> Result<()> {
        let Some(codes) = self.said_codes(name).filter(|codes| code_format(codes.dtype).is_none()) else {
            return Ok(());
        };
        let Some(said) = self.said_scheme(name) else { return Ok(()) };
        let scheme = match said {
            Ok(scheme) => scheme,
            // Of packed codes a broken entry is told with what is missing beside them.
            Err(_) if codes.dtype == Dtype::U8 => return Ok(()),
            Err(e) => return Err(self.refuse(name, e, self.again(name, codes))),
        };
        let must = code_dtype(scheme.format());
        if codes.dtype == must {
            return Ok(());
        }
        // Not the shape that it must have: of two codes a byte it is another, and what is plain has that of its values.
        let found = format!("is {} {:?}, but must be {must}, as the metadata says: {scheme}", codes.dtype, codes.shape);
        Err(self.refuse(&codes.name, found, self.again(name, codes)))
    }

    /// Whether a matrix is plain now, all that its codes may be by their names: an entry of the metadata about it was left.
    pub(super) fn is_left(&self, name: &str) -> bool {
        self.said_codes(name).is_some() && self.may_be_codes(name).all(|tensor| is_wide(tensor.dtype))
    }

    /// True for a scale that was left with such an entry: with the name, type and shape that it has beside the codes which the entry speaks of. Not for one
    /// that may be a scale of codes that are there, too: `x.weight_global_scale` has the name of one of `x.weight`, packed, and of one of `x.weight_global`.
    pub(super) fn is_left_scale(&self, tensor: &TensorInfo) -> bool {
        // Asked of every tensor: most files say nothing.
        if self.header.metadata.is_empty() {
            return false;
        }
        let has_codes = |name: &str| self.may_be_codes(name).any(|codes| !is_wide(codes.dtype));
        if scaled_by_name(&tensor.name).any(|name| has_codes(&name)) {
            return false;
        }
        scaled_by_name(&tensor.name).any(|name| {
            let text = self.written(&name).filter(|_| self.is_left(&name));
            let Some((text, Ok(scheme))) = text.zip(self.said_scheme(&name)) else { return false };
            let shape = self.said_codes(&name).map_or(&[][..], |plain| &plain.shape);
            let all = match *shape {
                [rows, cols] => vec![[1, rows, cols]],
                // Experts in one tensor: gpt-oss has the rows of their codes as columns of their values.
                [experts, one, other] => vec![[experts, one, other], [experts, other, one]],
                _ => return false,
            };
            // What has no elements has no scales either, and may have extents that overflow.
            if shape.contains(&0) {
                return false;
            }
            let dialect = dialect(text).unwrap_or_default();
            let mut written = all.into_iter().flat_map(|[experts, each, cols]| match scheme {
                StoredScheme::Cast(scheme) => vec![cast_scales(scheme, experts * each, cols)],
                StoredScheme::Product(scheme) => tensors_of_experts(dialect, scheme, [experts, each, cols]),
            });
            written.any(|scale| {
                tensor.name.strip_prefix(&*name) == Some(scale.suffix)
                    && (tensor.dtype, &tensor.shape) == (scale.dtype, &scale.shape)
            })
        })
    }

    /// The matrices that the metadata have a recipe of, and of which no codes are there. What is no recipe is somebody else's.
    pub(super) fn said_of_nothing(&self) -> impl Iterator<Item = &str> {
        let entries = self.header.metadata.iter().filter_map(|(key, text)| Some((key.strip_prefix(RECIPE_KEY)?, text)));
        entries.filter(|(name, text)| self.said_codes(name).is_none() && is_recipe(text)).map(|(name, _)| name)
    }

    /// What to do about codes of another type: values may be those of a matrix that is plain by now, and whose entry was left.
    pub(super) fn again(&self, name: &str, codes: &TensorInfo) -> String {
        match is_wide(codes.dtype) {
            true => format!("quantize it again, or, if it is plain now, take {RECIPE_KEY}{name} out of the metadata"),
            false => "quantize it again".into(),
        }
    }
}

/// How a matrix is quantized by the text of an entry.
fn scheme_of(text: &str) -> std::result::Result<StoredScheme, String> {
    match cast_scheme(text) {
        Some(cast) => cast.map(StoredScheme::Cast),
        None => Reading::from_json(text).map(|reading| StoredScheme::Product(reading.scheme)),
    }
}

/// True for the text of an entry that says how a matrix is quantized.
pub(super) fn is_recipe(text: &str) -> bool {
    scheme_of(text).is_ok()
}

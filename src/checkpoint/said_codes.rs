//! Codes that the metadata speak of, whatever type they are stored in: those of another type are refused, and never passed over.

use safetensors::Dtype;

use super::header::{RECIPE_KEY, TensorInfo};
use super::listing::Listing;
use super::names::{CODES_ENDINGS, code_dtype, code_format, is_wide};
use super::recipe::Reading;
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

    /// The tensor that holds the codes of a matrix by its name.
    fn said_codes(&self, name: &str) -> Option<&TensorInfo> {
        CODES_ENDINGS.iter().find_map(|suffix| self.ending(name, suffix))
    }

    /// Refuses codes of a type that those of the scheme in the metadata do not have. What is FP8 of one kind in the place of the other is
    /// refused where its scales are looked at.
    pub(super) fn check_said_type(&self, name: &str) -> Result<()> {
        let said = self.written(name).zip(self.said_codes(name));
        let Some((text, codes)) = said.filter(|(_, codes)| code_format(codes.dtype).is_none()) else { return Ok(()) };
        let scheme = match Reading::from_json(text) {
            Ok(reading) => reading.scheme,
            // Of packed codes a broken entry is told with what is missing beside them.
            Err(_) if codes.dtype == Dtype::U8 => return Ok(()),
            Err(e) => return Err(self.refuse(name, e, self.again(name, codes))),
        };
        let must = code_dtype(scheme.spec().format);
        if codes.dtype == must {
            return Ok(());
        }
        let (dtype, shape) = (codes.dtype, &codes.shape);
        let found = format!("is {dtype} {shape:?}, but must be {must} {shape:?}, as the metadata says {scheme}");
        Err(self.refuse(&codes.name, found, self.again(name, codes)))
    }

    /// True for an entry of the metadata that was left of a matrix which is plain now.
    pub(super) fn is_left(&self, key: &str) -> bool {
        let matrix = key.strip_prefix(RECIPE_KEY).and_then(|name| self.get(name));
        matrix.is_some_and(|matrix| is_wide(matrix.dtype))
    }

    /// What to do about codes of another type: values may be those of a matrix that is plain by now, and whose entry was left.
    pub(super) fn again(&self, name: &str, codes: &TensorInfo) -> String {
        match is_wide(codes.dtype) {
            true => format!("quantize it again, or, if it is plain now, take {RECIPE_KEY}{name} out of the metadata"),
            false => "quantize it again".into(),
        }
    }
}

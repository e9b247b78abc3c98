//! Names of enums: one list of variants and words gives `ALL`, `name`, `Display` and `FromStr`.

/// A word that names nothing: the error of `FromStr` of this crate's enums.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {text:?}; known are {}", known.join(", "))]
pub struct UnknownName {
    /// What was to be named, e.g. `element type`.
    pub what: &'static str,
    /// What was found.
    pub text: String,
    /// The names there are.
    pub known: Vec<String>,
}

impl UnknownName {
    /// From the names there are.
    pub(crate) fn new(what: &'static str, text: &str, known: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { what, text: text.into(), known: known.into_iter().map(Into::into).collect() }
    }
}

/// `named!(Type, "what it is", Variant => "word", ...)`; a variant may be an associated constant.
macro_rules! named {
    ($type:ty, $what:literal, $($variant:ident => $word:literal),+ $(,)?) => {
        impl $type {
            #[doc = concat!("Every ", $what, ".")]
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            #[doc = concat!("The name, on the command line and in files:" $(, " `", $word, "`")+, ".")]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::names::UnknownName;

            fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
                let known = [$($word),+];
                Self::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| {
                    $crate::names::UnknownName::new($what, text, known)
                })
            }
        }
    };
}

//! Nothing to do, unless feature `bindgen` asks for the bindings to be made again from the headers.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "bindgen")]
    generate::run();
}

#[cfg(feature = "bindgen")]
mod generate {
    use std::{env, fs, path::PathBuf};

    use syn::visit_mut::{self, VisitMut};
    use syn::{Expr, ImplItemFn, ReturnType, parse_quote};

    pub fn run() {
        println!("cargo:rerun-if-env-changed=CUBLASLT_INCLUDE");
        println!("cargo:rerun-if-env-changed=CUBLASLT_BINDINGS");
        let Some(include) = env::var_os("CUBLASLT_INCLUDE") else {
            println!(
                "cargo:warning=feature bindgen: CUBLASLT_INCLUDE (folders with cublasLt.h and what it includes) is not set; \
                 the committed bindings are used"
            );
            return;
        };
        let committed =
            PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("src/bindings.rs");
        let target = env::var_os("CUBLASLT_BINDINGS").map_or(committed, PathBuf::from);
        let folders = env::split_paths(&include).map(|folder| format!("-isystem{}", folder.display()));
        let generated = bindgen::Builder::default()
            .header_contents("wrapper.h", "#include <cublasLt.h>\n")
            .clang_args(["-x", "c", "-std=c11", "--target=x86_64-unknown-linux-gnu"])
            .clang_args(folders)
            .allowlist_function("cublasLt.*")
            .allowlist_type("cublasLt.*|cublasStatus_t|cublasComputeType_t|cudaDataType_t")
            .allowlist_var("CUBLASLT_.*")
            // Their value has suffix ull in the header and comes out as u32: src/lib.rs has them by hand, as u64.
            .blocklist_item("CUBLASLT_NUMERICAL_IMPL_FLAGS_.*")
            // Declared in the header, but not exported by every library.
            .blocklist_function("cublasLtDisableCpuInstructionsSetMask")
            // It takes a FILE, whose size is the C library's affair.
            .blocklist_item("cublasLtLoggerSetFile|FILE|_IO_.*|__off.*")
            .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
            .derive_hash(true)
            .derive_eq(true)
            .layout_tests(true)
            .generate_comments(false)
            .dynamic_library_name("CublasLt")
            .dynamic_link_require_all(false)
            .wrap_unsafe_ops(true)
            .disable_header_comment()
            .formatter(bindgen::Formatter::None)
            .generate()
            .expect("bindgen reads cublasLt.h");
        let mut file = syn::parse_file(&generated.to_string()).expect("bindgen writes Rust");
        MissingIsAnError.visit_file_mut(&mut file);
        let text = format!(
            "// Made by build.rs with feature `bindgen` from cublasLt.h; do not edit: scripts/bindings.sh makes it again.\n{}",
            prettyplease::unparse(&file)
        );
        fs::write(&target, text).unwrap_or_else(|error| panic!("{}: {error}", target.display()));
    }

    /// bindgen's methods panic when the library lacks the symbol; here they return `Result<_, &libloading::Error>`.
    struct MissingIsAnError;

    impl VisitMut for MissingIsAnError {
        fn visit_impl_item_fn_mut(&mut self, method: &mut ImplItemFn) {
            let mut calls = Calls(0);
            calls.visit_block_mut(&mut method.block);
            if calls.0 == 0 {
                return;
            }
            let returned: syn::Type = match &method.sig.output {
                ReturnType::Default => parse_quote!(()),
                ReturnType::Type(_, returned) => (**returned).clone(),
            };
            method.sig.output = parse_quote!(-> Result<#returned, &::libloading::Error>);
            let body = &method.block;
            method.block = parse_quote!({ Ok(#body) });
            Unwrap.visit_block_mut(&mut method.block);
        }
    }

    /// Replaces `self.f.as_ref().expect("...")` by `self.f.as_ref()?`, and counts.
    struct Calls(usize);

    impl VisitMut for Calls {
        fn visit_expr_mut(&mut self, expr: &mut Expr) {
            visit_mut::visit_expr_mut(self, expr);
            if let Expr::MethodCall(call) = expr
                && call.method == "expect"
            {
                let receiver = &call.receiver;
                *expr = parse_quote!(#receiver?);
                self.0 += 1;
            }
        }
    }

    /// `Ok({ unsafe { f(x) } })` reads better as `Ok(unsafe { f(x) })`.
    struct Unwrap;

    impl VisitMut for Unwrap {
        fn visit_expr_mut(&mut self, expr: &mut Expr) {
            visit_mut::visit_expr_mut(self, expr);
            if let Expr::Block(block) = expr
                && let [syn::Stmt::Expr(only, None)] = &block.block.stmts[..]
            {
                *expr = only.clone();
            }
        }
    }
}

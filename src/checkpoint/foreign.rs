//! What a file is that is no safetensors file, told by how it begins: its name often says nothing, or the wrong thing.

/// Bytes of the beginning that [`kind`] looks at.
pub(super) const BEGINNING: u64 = 32;
/// Longest header accepted, as in the safetensors crate.
const MAX_HEADER: u64 = 100_000_000;

const ZIP: &[u8] = b"PK\x03\x04";
const CONVERT: &str = "convert it: in Python, safetensors.torch.save_file(torch.load(FILE, weights_only=True), NEW)";

/// True for the beginning of a JSON object, as an index of shards is one.
pub(super) fn is_object(beginning: &[u8]) -> bool {
    let is_length = beginning.first_chunk::<8>().is_some_and(|first| u64::from_le_bytes(*first) <= MAX_HEADER);
    !is_length && beginning.trim_ascii_start().first() == Some(&b'{')
}

/// What the file is, and what to do; `None` for one that begins as safetensors do, with the length of a header in 8 bytes.
pub(super) fn kind(beginning: &[u8]) -> Option<(String, &'static str)> {
    let (first, rest) = beginning.split_first_chunk::<8>()?;
    // Alone among these, a zip may begin with what could be a length.
    let zip = beginning.starts_with(ZIP) && rest.first() != Some(&b'{');
    if u64::from_le_bytes(*first) <= MAX_HEADER && !zip {
        return None;
    }
    let but = |what: &str| format!("it is not a safetensors file but {what}");
    let known: [(&[u8], &str, &str); 4] = [
        (ZIP, "a zip archive, as PyTorch writes (.pt, .pth, .bin)", CONVERT),
        (b"\x80\x02", "a pickle, as older PyTorch writes (.pt, .pth, .bin)", CONVERT),
        (b"GGUF", "GGUF", "give the safetensors files that it was made of"),
        (b"version https://git-lfs", "a pointer of Git LFS, without the data", "fetch the file itself: git lfs pull"),
    ];
    if let Some((_, what, remedy)) = known.into_iter().find(|(magic, ..)| beginning.starts_with(magic)) {
        return Some((but(what), remedy));
    }
    if beginning.trim_ascii_start().starts_with(b"[") {
        return Some((but("JSON"), "give a safetensors file, or the index of a model's shards"));
    }
    let shown = beginning[..beginning.len().min(16)].escape_ascii();
    Some((format!("it is not a safetensors file: it begins with \"{shown}\""), "give a safetensors file"))
}

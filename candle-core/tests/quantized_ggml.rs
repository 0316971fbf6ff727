//! GGML and imatrix files, assembled by hand.

use std::io::{Cursor, Write};

use candle_core::quantized::ggml_file::{qtensor_from_ggml, Content, VersionedMagic};
use candle_core::quantized::imatrix_file::load_imatrix;
use candle_core::quantized::GgmlDType;
use candle_core::{Device, Result};

const CPU: Device = Device::Cpu;

fn words(bytes: &mut Vec<u8>, words: &[u32]) {
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// Returns the magic number and the version.
fn head(magic: &[u8; 4], version: Option<u32>) -> Vec<u8> {
    let mut bytes = vec![];
    words(&mut bytes, &[u32::from_be_bytes(*magic)]);
    words(&mut bytes, version.as_slice());
    bytes
}

/// Returns a file with two tokens and two tensors: 64 elements of Q8_0 in two rows, and three of f32.
fn file(magic: &[u8; 4], version: Option<u32>) -> Vec<u8> {
    let mut bytes = head(magic, version);
    words(&mut bytes, &[2, 11, 12, 13, 14, 15, 16]);
    for (token, score) in [(&b"a"[..], 0.5f32), (b"\xff\x01", -1.)] {
        words(&mut bytes, &[token.len() as u32]);
        bytes.extend(token);
        if magic != b"ggml" {
            bytes.extend(score.to_le_bytes());
        }
    }
    let align = |bytes: &mut Vec<u8>| {
        if magic == b"ggjt" {
            bytes.resize(bytes.len().next_multiple_of(32), 0);
        }
    };
    // Rank, length of the name, format, dimensions, name.
    words(&mut bytes, &[2, 6, 8, 32, 2]);
    bytes.extend(b"weight");
    align(&mut bytes);
    for row in 0..2u8 {
        bytes.extend(half::f16::from_f32(0.5).to_le_bytes());
        bytes.extend([row + 1; 32]);
    }
    words(&mut bytes, &[1, 4, 0, 3]);
    bytes.extend(b"bias");
    align(&mut bytes);
    bytes.extend([1f32, 2., 3.].iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

const MAGICS: [(&[u8; 4], Option<u32>, VersionedMagic); 5] = [
    (b"ggml", None, VersionedMagic::GgmlUnversioned),
    (b"ggmf", Some(1), VersionedMagic::GgmfV1),
    (b"ggjt", Some(1), VersionedMagic::GgjtV1),
    (b"ggjt", Some(2), VersionedMagic::GgjtV2),
    (b"ggjt", Some(3), VersionedMagic::GgjtV3),
];

fn read(bytes: &[u8]) -> Result<Content> {
    Content::read(&mut Cursor::new(bytes), &CPU)
}

#[test]
fn every_magic() -> Result<()> {
    for (magic, version, expected) in MAGICS {
        let mut content = read(&file(magic, version))?;
        assert_eq!(content.magic, expected);
        assert_eq!((content.hparams.n_vocab, content.hparams.ftype), (2, 16));
        assert_eq!((content.hparams.n_embd, content.hparams.n_rot), (11, 15));
        let scores = if magic == b"ggml" {
            [0., 0.]
        } else {
            [0.5, -1.]
        };
        let tokens = &content.vocab.token_score_pairs;
        assert_eq!(tokens[0], (b"a".to_vec(), scores[0]));
        assert_eq!(tokens[1], (b"\xff\x01".to_vec(), scores[1]));
        assert_eq!(content.tensors.len(), 2);
        let weight = content.remove("weight")?;
        assert_eq!(
            (weight.dtype(), weight.shape().dims()),
            (GgmlDType::Q8_0, &[2, 32][..])
        );
        let values = weight.dequantize(&CPU)?.to_vec2::<f32>()?;
        assert_eq!(values, [[0.5; 32], [1.; 32]]);
        let bias = content.remove("bias")?.dequantize(&CPU)?;
        assert_eq!(bias.to_vec1::<f32>()?, [1., 2., 3.]);
        let err = content.remove("bias").unwrap_err().to_string();
        assert!(err.contains("cannot find tensor bias"), "{err}");
    }
    Ok(())
}

#[test]
fn malformed_ggml() {
    let with = |words_: &[u32]| {
        let mut bytes = head(b"ggmf", Some(1));
        words(&mut bytes, &[0; 7]);
        words(&mut bytes, words_);
        bytes
    };
    let tokens = |count: u32, len: u32| {
        let mut bytes = head(b"ggmf", Some(1));
        words(&mut bytes, &[count, 0, 0, 0, 0, 0, 0, len, 0]);
        bytes
    };
    let mut twice = file(b"ggmf", Some(1));
    words(&mut twice, &[1, 4, 0, 1]);
    twice.extend(b"bias\0\0\0\0");
    for (bytes, parts) in [
        (vec![], ["head", "4 bytes"]),
        (b"GGUF".to_vec(), ["head", "gguf_file"]),
        (head(b"ggjt", Some(4)), ["head", "version 4"]),
        (head(b"ggmf", Some(2)), ["head", "version 2"]),
        (head(b"ggml", None), ["hyperparameters", "4 bytes"]),
        (tokens(u32::MAX, 0), ["vocabulary", "a count of 4294967295"]),
        (tokens(1, u32::MAX), ["token 0 of 1", "4294967295 bytes"]),
        (with(&[17, 0, 0]), ["tensor at byte 36", "17 dimensions"]),
        (
            with(&[1, u32::MAX, 0, 1]),
            ["tensor at byte 36", "4294967295 bytes"],
        ),
        (with(&[1, 0, 31, 1]), ["tensor \"\"", "GGML dtype 31"]),
        (
            with(&[1, 0, 2, 33]),
            ["tensor \"\"", "is not a whole number of Q4_0 blocks"],
        ),
        (
            with(&[3, 0, 0, !0, !0, !0]),
            ["tensor \"\"", "too many elements"],
        ),
        (with(&[1, 0, 0, !0]), ["tensor \"\"", "17179869180 bytes"]),
        (with(&[0, 0, 0]), ["tensor \"\"", "4 bytes"]),
        (twice, ["GGML", "\"bias\" appears twice"]),
    ] {
        let Err(err) = read(&bytes) else {
            panic!("{parts:?} is not an error");
        };
        let err = err.to_string();
        for part in parts {
            assert!(err.contains(part), "{part:?} is not in {err:?}");
        }
    }
}

#[test]
fn cut_and_changed_ggml() {
    for (magic, version, _) in MAGICS {
        let file = file(magic, version);
        for at in 0..file.len() {
            let _ = read(&file[..at]);
            for byte in [1, 0x80, 0xff] {
                let mut changed = file.clone();
                changed[at] ^= byte;
                let _ = read(&changed);
            }
        }
        assert!(read(&file[..file.len() - 1]).is_err());
    }
}

#[test]
fn tensors_of_bytes() -> Result<()> {
    let bytes = [half::f16::from_f32(2.).to_le_bytes().to_vec(), vec![3; 32]].concat();
    let tensor = qtensor_from_ggml(GgmlDType::Q8_0, &bytes, vec![1, 32], &CPU)?;
    assert_eq!(tensor.dequantize(&CPU)?.to_vec2::<f32>()?, [[6.; 32]]);
    for (dims, part) in [
        (vec![2, 32], "68 bytes, but there are 34"),
        (vec![2, 16], "block size 32"),
        (vec![usize::MAX, 32], "too many elements"),
    ] {
        let err = qtensor_from_ggml(GgmlDType::Q8_0, &bytes, dims, &CPU)
            .unwrap_err()
            .to_string();
        assert!(err.contains(part), "{err}");
    }
    Ok(())
}

fn imatrix(bytes: &[u8]) -> Result<std::collections::HashMap<String, Vec<f32>>> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(bytes)?;
    load_imatrix(file.path())
}

fn entry(bytes: &mut Vec<u8>, name: &[u8], calls: i32, sums: &[f32]) {
    words(bytes, &[name.len() as u32]);
    bytes.extend(name);
    words(bytes, &[calls as u32, sums.len() as u32]);
    bytes.extend(sums.iter().flat_map(|v| v.to_le_bytes()));
}

#[test]
fn importance_matrices() -> Result<()> {
    let mut bytes = vec![];
    words(&mut bytes, &[3]);
    entry(&mut bytes, b"blk.0", 4, &[4., 8.]);
    entry(&mut bytes, b"never", 0, &[5.]);
    entry(&mut bytes, b"empty", 1, &[]);
    // The number of chunks and the name of the text may follow.
    let mut long = bytes.clone();
    words(&mut long, &[7, 1]);
    long.push(b'x');
    for bytes in [bytes, long] {
        let weights = imatrix(&bytes)?;
        assert_eq!(weights.len(), 3);
        assert_eq!(weights["blk.0"], [1., 2.]);
        assert_eq!(weights["never"], [5.]);
        assert!(weights["empty"].is_empty());
    }

    let with = |words_: &[u32]| {
        let mut bytes = vec![];
        words(&mut bytes, words_);
        bytes
    };
    let mut twice = with(&[2]);
    for _ in 0..2 {
        entry(&mut twice, b"a", 1, &[]);
    }
    for (bytes, part) in [
        (vec![], "number of entries"),
        (with(&[!0]), "a count of -1 is negative"),
        (with(&[i32::MAX as u32, 0, 0, 0]), "number of entries"),
        (with(&[1, !0, 0, 0]), "name of entry 0 of 1"),
        (with(&[1, 100, 0, 0]), "name of entry 0 of 1"),
        (with(&[1, 0, 1, !0]), "entry \"\""),
        (with(&[1, 0, 1, i32::MAX as u32]), "entry \"\""),
        (twice, "entry \"a\" appears twice"),
    ] {
        let err = imatrix(&bytes).unwrap_err().to_string();
        assert!(
            err.contains(part) && err.contains("imatrix"),
            "{part:?} is not in {err:?}"
        );
    }
    let err = load_imatrix("no/such/file").unwrap_err().to_string();
    assert!(err.contains("no/such/file"), "{err}");
    Ok(())
}

//! GGUF files: a file made by the `gguf` package (`fixtures/gguf/make.py`), hand-made bytes of every version, round trips, and malformed
//! files.

use std::io::{Cursor, Seek, SeekFrom, Write};

use candle_core::quantized::gguf_file::{
    self, Content, MmapedContent, Value, ValueType, VersionedMagic,
};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Result, Tensor};

use crate::agree::{assert_close, assert_same, Tolerance};

const CPU: Device = Device::Cpu;
const FORMATS: &[u8] = include_bytes!("fixtures/gguf/formats.gguf");

/// The formats in the file, and whether the package quantised them itself.
const IN_FILE: [(GgmlDType, bool); 13] = [
    (GgmlDType::F32, true),
    (GgmlDType::F16, true),
    (GgmlDType::BF16, true),
    (GgmlDType::Q4_0, true),
    (GgmlDType::Q4_1, true),
    (GgmlDType::Q5_0, true),
    (GgmlDType::Q5_1, true),
    (GgmlDType::Q8_0, true),
    (GgmlDType::Q2K, false),
    (GgmlDType::Q3K, false),
    (GgmlDType::Q4K, false),
    (GgmlDType::Q5K, false),
    (GgmlDType::Q6K, false),
];

fn values(content: &Content, name: &str) -> Result<Tensor> {
    let tensor = content.tensor(&mut Cursor::new(FORMATS), name, &CPU)?;
    tensor.dequantize(&CPU)
}

#[test]
fn every_format_as_gguf_reads_it() -> Result<()> {
    let content = Content::read(&mut Cursor::new(FORMATS))?;
    assert_eq!(content.magic, VersionedMagic::GgufV3);
    let floats = values(&content, "floats")?;
    for (dtype, quantised) in IN_FILE {
        let tensor = content.tensor(
            &mut Cursor::new(FORMATS),
            &format!("{dtype:?}.blocks"),
            &CPU,
        )?;
        assert_eq!(tensor.dtype(), dtype);
        assert_eq!(tensor.shape().dims(), &[2, 256]);
        let want = values(&content, &format!("{dtype:?}.values"))?;
        // Two f32 roundings of values up to about 100.
        let room = Tolerance::of(DType::F32, 3e-7).or_absolute(1e-5);
        let got = tensor.dequantize(&CPU)?;
        assert_close(&got, &want, room, &format!("{dtype:?}"))?;
        if quantised {
            let lost = |values: &Tensor| (values - &floats)?.sqr()?.sum_all()?.to_scalar::<f32>();
            let ours = lost(&QTensor::quantize(&floats, dtype)?.dequantize(&CPU)?)?;
            let theirs = lost(&want)?;
            assert!(
                ours <= 1.001 * theirs,
                "{dtype:?}: {ours} lost, {theirs} by gguf"
            );
        }
    }
    Ok(())
}

#[test]
fn metadata_as_gguf_writes_it() -> Result<()> {
    let content = Content::read(&mut Cursor::new(FORMATS))?;
    let get = |key: &str| &content.metadata[key];
    assert_eq!(get("general.architecture").to_string()?, "oracle");
    assert_eq!(get("a.u8").to_u8()?, 200);
    assert_eq!(get("a.i8").to_i8()?, -100);
    assert_eq!(get("a.u16").to_u16()?, 60_000);
    assert_eq!(get("a.i16").to_i16()?, -30_000);
    assert_eq!(get("a.u32").to_u32()?, 4_000_000_000);
    assert_eq!(get("a.i32").to_i32()?, -2_000_000_000);
    assert_eq!(get("a.u64").to_u64()?, (1 << 63) + 1);
    assert_eq!(get("a.i64").to_i64()?, -(1 << 62));
    assert_eq!(get("a.f32").to_f32()?, 0.5);
    assert_eq!(get("a.f64").to_f64()?, 0.1);
    assert!(get("a.bool").to_bool()?);
    assert_eq!(get("a.text").to_string()?, "grüße");
    let texts = get("a.texts").to_vec()?;
    let texts = texts
        .iter()
        .map(|text| text.to_string().map(String::as_str));
    assert_eq!(texts.collect::<Result<Vec<_>>>()?, ["", "b", "€"]);
    let numbers = get("a.numbers").to_vec()?.iter().map(Value::to_i32);
    assert_eq!(numbers.collect::<Result<Vec<_>>>()?, [1, -2, 3]);
    assert_eq!(get("general.alignment").to_u64()?, 64);
    assert_eq!(content.tensor_data_offset % 64, 0);
    // Integers of other sizes, if the value fits.
    assert_eq!(get("a.u8").to_u64()?, 200);
    assert_eq!(get("a.i8").to_i64()?, -100);
    assert_eq!(get("a.bool").to_u64()?, 1);
    for (key, read) in [
        ("a.u32", Value::to_i64(get("a.u32")).map(|_| ())),
        ("a.f32", get("a.f32").to_f64().map(|_| ())),
    ] {
        assert!(read.is_ok(), "{key}");
    }
    let errors = [
        get("a.i8").to_u8().map(drop),
        get("a.u64").to_i64().map(drop),
        get("a.f32").to_u32().map(drop),
        get("a.u8").to_f32().map(drop),
        get("a.u8").to_bool().map(drop),
        get("a.u8").to_string().map(drop),
        get("a.u8").to_vec().map(drop),
        get("a.texts").to_f64().map(drop),
    ];
    let kinds = ["U8", "I64", "U32", "F32", "Bool", "String", "Array", "F64"];
    for (error, kind) in errors.into_iter().zip(kinds) {
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains(&format!("expected {kind}, found")),
            "{error}"
        );
    }
    Ok(())
}

fn every_value() -> Vec<(&'static str, Value)> {
    let array = Value::Array(vec![Value::String("x".into()), Value::String("".into())]);
    vec![
        ("u8", Value::U8(255)),
        ("i8", Value::I8(-1)),
        ("u16", Value::U16(65_535)),
        ("i16", Value::I16(-2)),
        ("u32", Value::U32(u32::MAX)),
        ("i32", Value::I32(i32::MIN)),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f32", Value::F32(1.5)),
        ("f64", Value::F64(-0.1)),
        ("bool", Value::Bool(false)),
        ("string", Value::String("ä b".into())),
        (
            "nested",
            Value::Array(vec![array.clone(), Value::Array(vec![]), array]),
        ),
        ("empty", Value::Array(vec![])),
    ]
}

#[test]
fn written_and_read() -> Result<()> {
    let floats = Tensor::arange(0f32, 6. * 256., &CPU)?.reshape((2, 3, 256))?;
    let tensors = [
        (
            "first",
            QTensor::quantize(&floats.narrow(2, 0, 32)?, GgmlDType::Q5_1)?,
        ),
        (
            "odd",
            QTensor::quantize(&floats.narrow(2, 0, 3)?, GgmlDType::F16)?,
        ),
        (
            "none",
            QTensor::quantize(&floats.narrow(0, 0, 0)?, GgmlDType::Q8_0)?,
        ),
        ("last", QTensor::quantize(&floats, GgmlDType::Q6K)?),
    ];
    for alignment in [None, Some(8u32), Some(32), Some(100), Some(4096)] {
        // Not at the start of its stream.
        for start in [0, 5] {
            let mut metadata = every_value();
            metadata.extend(alignment.map(|bytes| ("general.alignment", Value::U32(bytes))));
            let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
            let by_name = tensors.each_ref().map(|(name, tensor)| (*name, tensor));
            let mut file = Cursor::new(vec![]);
            file.write_all(&[1; 5][..start])?;
            gguf_file::write(&mut file, &metadata, &by_name)?;
            file.seek(SeekFrom::Start(start as u64))?;

            let content = Content::read(&mut file)?;
            assert!(file.position() <= content.tensor_data_offset);
            assert_eq!(content.metadata.len(), metadata.len());
            for (key, value) in &metadata {
                let got = &content.metadata[*key];
                assert_eq!(got.value_type(), value.value_type());
                assert_eq!(format!("{got:?}"), format!("{value:?}"));
            }
            let bytes = alignment.unwrap_or(32) as u64;
            assert_eq!(content.tensor_data_offset % bytes, 0);
            assert_eq!(content.tensor_infos.len(), tensors.len());
            for (name, tensor) in &tensors {
                assert_eq!(content.tensor_infos[*name].offset % bytes, 0, "{name}");
                let got = content.tensor(&mut file, name, &CPU)?;
                assert_eq!(got.shape(), tensor.shape(), "{name}");
                assert_eq!(got.dtype(), tensor.dtype(), "{name}");
                assert_eq!(got.data()?, tensor.data()?, "{name}");
            }
        }
    }
    let mixed = Value::Array(vec![Value::U8(1), Value::String("x".into())]);
    let refused = |metadata: &[(&str, &Value)], tensors: &[(&str, &QTensor)]| {
        let err = gguf_file::write(&mut Cursor::new(vec![]), metadata, tensors);
        err.unwrap_err().to_string()
    };
    let err = refused(&[("mixed", &mixed)], &[]);
    assert!(
        err.contains("mixed") && err.contains("U8") && err.contains("String"),
        "{err}"
    );
    assert!(refused(&[("general.alignment", &Value::U32(0))], &[]).contains("is 0"));
    let one = ("first", &tensors[0].1);
    assert!(refused(&[], &[one, one]).contains("\"first\" appears twice"));
    Ok(())
}

/// The parts of a file, assembled by hand from the specification.
#[derive(Default)]
struct Parts {
    version: u32,
    bytes: Vec<u8>,
}

impl Parts {
    fn new(version: u32, tensors: u64, values: u64) -> Self {
        let mut parts = Self {
            version,
            bytes: b"GGUF".to_vec(),
        };
        parts.u32(version);
        parts.count(tensors);
        parts.count(values);
        parts
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Writes a count or a length: 32 bits in version 1, 64 bits in later versions.
    fn count(&mut self, value: u64) -> &mut Self {
        match self.version {
            1 => self.u32(value as u32),
            _ => self.u64(value),
        }
    }

    fn text(&mut self, text: &[u8]) -> &mut Self {
        self.count(text.len() as u64);
        self.bytes.extend(text);
        self
    }

    fn tensor(&mut self, name: &[u8], dims: &[u64], dtype: u32, offset: u64) -> &mut Self {
        self.text(name).u32(dims.len() as u32);
        for &dim in dims {
            self.count(dim);
        }
        self.u32(dtype).u64(offset)
    }

    fn padded(&mut self, alignment: usize) -> &mut Self {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(alignment), 0);
        self
    }
}

fn read(bytes: &[u8]) -> Result<Content> {
    Content::read(&mut Cursor::new(bytes))
}

#[test]
fn every_version() -> Result<()> {
    for (version, magic) in [
        (1, VersionedMagic::GgufV1),
        (2, VersionedMagic::GgufV2),
        (3, VersionedMagic::GgufV3),
    ] {
        let mut parts = Parts::new(version, 1, 3);
        // 8: a string, which version 1 may end with a zero; 9: an array of 1: i8; 7: a bool.
        parts.text(b"name").u32(8).text(b"tiny\0");
        parts
            .text(b"list")
            .u32(9)
            .u32(1)
            .count(2)
            .bytes
            .extend([3, 0xff]);
        parts.text(b"yes").u32(7).bytes.push(1);
        // 1: f16, 3 columns and 2 rows.
        parts.tensor(b"t", &[3, 2], 1, 0).padded(32);
        for i in 0..6u8 {
            parts
                .bytes
                .extend(half::f16::from_f32(f32::from(i)).to_le_bytes());
        }
        let content = read(&parts.bytes)?;
        assert_eq!(content.magic, magic);
        assert_eq!(content.metadata["name"].to_string()?, "tiny");
        let list = content.metadata["list"].to_vec()?;
        assert_eq!((list[0].to_i8()?, list[1].to_i8()?), (3, -1));
        assert_eq!(list[0].value_type(), ValueType::I8);
        assert!(content.metadata["yes"].to_bool()?);
        let tensor = content.tensor(&mut Cursor::new(&parts.bytes), "t", &CPU)?;
        let want = Tensor::arange(0f32, 6., &CPU)?.reshape((2, 3))?;
        assert_same(&tensor.dequantize(&CPU)?, &want, "values")?;
    }
    Ok(())
}

/// Tokens may be parts of UTF-8 sequences.
#[test]
fn text_that_is_not_utf8() -> Result<()> {
    let mut parts = Parts::new(3, 0, 1);
    parts.text(b"token").u32(8).text(b"a\xffb");
    assert_eq!(
        read(&parts.bytes)?.metadata["token"].to_string()?,
        "a\u{fffd}b"
    );
    Ok(())
}

#[test]
fn files_that_lie_about_their_head() {
    let mut cases: Vec<(Vec<u8>, &[&str])> = vec![
        (vec![], &["head", "4 bytes"]),
        (b"GGML\x03\0\0\0".to_vec(), &["head", "found GGML"]),
        (b"GGUF".to_vec(), &["head", "4 bytes"]),
        (b"GGUF\x04\0\0\0".to_vec(), &["head", "version 4"]),
        (b"GGUF\0\0\0\x03".to_vec(), &["head", "big endian"]),
        (
            Parts::new(3, 0, u64::MAX).bytes,
            &["metadata_kv_count", "18446744073709551615"],
        ),
        (
            Parts::new(3, u64::MAX / 16, 0).bytes,
            &["number of tensors", "tensor_count"],
        ),
        (
            Parts::new(1, u32::MAX.into(), 0).bytes,
            &["number of tensors"],
        ),
    ];
    let mut case = |tensors, values, parts: &[&'static str], fill: &dyn Fn(&mut Parts)| {
        for version in [1, 2, 3] {
            let mut file = Parts::new(version, tensors, values);
            fill(&mut file);
            // Enough bytes to pass the first check of the counts.
            file.bytes.extend([0; 64]);
            cases.push((file.bytes, Box::leak(parts.to_vec().into_boxed_slice())));
        }
    };
    case(0, 1, &["key of metadata entry 0"], &|file| {
        file.count(u32::MAX.into());
    });
    case(
        0,
        1,
        &["metadata \"k\"", "unknown value type 13"],
        &|file| {
            file.text(b"k").u32(13);
        },
    );
    case(0, 1, &["metadata \"k\"", "2 is not a bool"], &|file| {
        file.text(b"k").u32(7).bytes.push(2);
    });
    let parts = &["metadata \"k\"", "string length", "4294967295"];
    case(0, 1, parts, &|file| {
        file.text(b"k").u32(8).count(u32::MAX.into());
    });
    case(
        0,
        1,
        &["metadata \"k\"", "array length", "a count of 4294967295"],
        &|file| {
            file.text(b"k").u32(9).u32(0).count(u32::MAX.into());
        },
    );
    let parts = &["metadata \"k\"", "nesting depth", "exceeds 64"];
    case(0, 1, parts, &|file| {
        file.text(b"k").u32(9);
        for _ in 0..100_000 {
            file.u32(9).count(1);
        }
    });
    case(0, 2, &["metadata \"k\" appears twice"], &|file| {
        for _ in 0..2 {
            file.text(b"k").u32(0).bytes.push(1);
        }
    });
    case(0, 1, &["general.alignment", "is 0"], &|file| {
        file.text(b"general.alignment").u32(4).u32(0);
    });
    case(0, 1, &["general.alignment", "expected U64"], &|file| {
        file.text(b"general.alignment").u32(8).text(b"32");
    });
    case(1, 0, &["name of tensor 0", "string length"], &|file| {
        file.count(u32::MAX.into());
    });
    case(1, 0, &["tensor \"t\"", "17 dimensions"], &|file| {
        file.tensor(b"t", &[1; 17], 0, 0);
    });
    #[cfg(not(feature = "all-ggml-types"))]
    case(
        1,
        0,
        &["tensor \"t\"", "GGML dtype 29 (IQ1_M", "`all-ggml-types`"],
        &|file| {
            file.tensor(b"t", &[1], 29, 0);
        },
    );
    case(
        1,
        0,
        &["tensor \"t\"", "GGML dtype 99", "12 (Q4K)"],
        &|file| {
            file.tensor(b"t", &[1], 99, 0);
        },
    );
    case(
        1,
        0,
        &["tensor \"t\"", "is not a whole number of Q4_0 blocks"],
        &|file| {
            file.tensor(b"t", &[33], 2, 0);
        },
    );
    case(1, 0, &["tensor \"t\"", "too many elements"], &|file| {
        file.tensor(b"t", &[u32::MAX.into(); 3], 0, 0);
    });
    case(2, 0, &["tensor \"t\" appears twice"], &|file| {
        file.tensor(b"t", &[1], 0, 0).tensor(b"t", &[1], 0, 0);
    });
    for (bytes, parts) in cases {
        let err = read(&bytes).unwrap_err().to_string();
        for part in parts.iter().chain(&["GGUF"]) {
            assert!(err.contains(part), "{part:?} is not in {err:?}");
        }
    }
}

#[test]
fn files_that_lie_about_their_tensors() -> Result<()> {
    for (dims, offset, parts) in [
        // 64 bytes of blocks, but the file has 36.
        (vec![16u64], 0u64, ["64 bytes of F32", "36 remaining"]),
        (vec![9], 4, ["tensor \"t\"", "offset 4"]),
        (
            vec![1],
            u64::MAX,
            ["tensor \"t\"", "offset 18446744073709551615"],
        ),
        (
            vec![1],
            u64::MAX - 100,
            ["tensor \"t\"", "offset 18446744073709551515"],
        ),
        (vec![1 << 40], 0, ["tensor \"t\"", "4398046511104 bytes"]),
    ] {
        let mut file = Parts::new(3, 1, 0);
        file.tensor(b"t", &dims, 0, offset)
            .padded(32)
            .bytes
            .extend([0; 36]);
        let content = read(&file.bytes)?;
        let err = content.tensor(&mut Cursor::new(&file.bytes), "t", &CPU);
        let err = err.unwrap_err().to_string();
        for part in parts {
            assert!(err.contains(part), "{part:?} is not in {err:?}");
        }
        let err = content.tensor(&mut Cursor::new(&file.bytes), "u", &CPU);
        assert!(err
            .unwrap_err()
            .to_string()
            .contains("cannot find tensor u"));
    }
    // A row that is not a whole number of blocks, though the sum of all rows is.
    let mut file = Parts::new(3, 1, 0);
    file.tensor(b"t", &[16, 2], 2, 0)
        .padded(32)
        .bytes
        .extend([0; 18]);
    let err = read(&file.bytes)?.tensor(&mut Cursor::new(&file.bytes), "t", &CPU);
    let err = err.unwrap_err().to_string();
    assert!(
        err.contains("tensor \"t\"") && err.contains("block size 32"),
        "{err}"
    );
    Ok(())
}

/// A file truncated anywhere, or with any byte changed, gives a value or an error.
#[test]
fn cut_and_changed_files() -> Result<()> {
    let metadata = every_value();
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensor = QTensor::quantize(&Tensor::zeros((2, 32), DType::F32, &CPU)?, GgmlDType::Q4_0)?;
    let mut file = Cursor::new(vec![]);
    gguf_file::write(&mut file, &metadata, &[("t", &tensor)])?;
    let file = file.into_inner();
    let whole = |bytes: &[u8]| -> Result<()> {
        let content = read(bytes)?;
        for name in content.tensor_infos.keys() {
            content
                .tensor(&mut Cursor::new(bytes), name, &CPU)?
                .dequantize(&CPU)?;
        }
        Ok(())
    };
    whole(&file)?;
    // The last bytes are padding.
    for len in 0..file.len() - 32 {
        assert!(
            whole(&file[..len]).is_err(),
            "cut to {len} of {}",
            file.len()
        );
    }
    for at in 0..file.len() {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = file.clone();
            changed[at] ^= byte;
            let _ = whole(&changed);
        }
    }
    Ok(())
}

#[test]
fn mapped_files() -> Result<()> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(FORMATS)?;
    // SAFETY: nobody changes the file while it is mapped.
    let mapped = unsafe { MmapedContent::new(file.path())? };
    assert_eq!(mapped.metadata["a.u8"].to_u8()?, 200);
    let first = mapped.tensor("Q4_0.blocks", &CPU)?;
    let second = mapped.tensor("Q4_0.blocks", &CPU)?;
    assert_eq!(
        first.device_ptr()?,
        second.device_ptr()?,
        "both are the file's pages"
    );
    for name in mapped.tensor_infos.keys() {
        let want = mapped.content_tensor(name)?;
        let got = mapped.tensor(name, &CPU)?;
        assert_eq!(got.data()?, want.data()?, "{name}");
        assert_same(&got.dequantize(&CPU)?, &want.dequantize(&CPU)?, name)?;
    }
    let err = mapped.tensor("nothing", &CPU).unwrap_err().to_string();
    assert!(err.contains("cannot find tensor nothing"), "{err}");
    // A tensor remains valid after the file's handle is dropped.
    drop(mapped);
    assert_eq!(first.data()?, second.data()?);

    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(b"GGUF\x07\0\0\0")?;
    // SAFETY: as above.
    let err = unsafe { MmapedContent::new(file.path()) }
        .unwrap_err()
        .to_string();
    let path = file.path().display().to_string();
    assert!(err.contains(&path) && err.contains("version 7"), "{err}");
    Ok(())
}

trait ContentTensor {
    fn content_tensor(&self, name: &str) -> Result<QTensor>;
}

impl ContentTensor for MmapedContent {
    /// Returns the tensor as read from a stream.
    fn content_tensor(&self, name: &str) -> Result<QTensor> {
        Content::tensor(self, &mut Cursor::new(FORMATS), name, &CPU)
    }
}

/// Returns the paths of a split model in a folder, named as by `llama-gguf-split`.
fn parts(folder: &std::path::Path, count: usize) -> Result<Vec<std::path::PathBuf>> {
    let mut paths = Vec::new();
    for no in 0..count {
        let mut metadata = vec![
            ("split.no", Value::U16(no as u16)),
            ("split.count", Value::U16(count as u16)),
            ("split.tensors.count", Value::I32(2 * count as i32 - 1)),
        ];
        if no == 0 {
            metadata.push(("general.name", Value::String("in parts".into())));
        }
        let mut tensors = Vec::new();
        // The first part has one tensor, the others two.
        for i in 0..if no == 0 { 1 } else { 2 } {
            let values: Vec<f32> = (0..64).map(|v| (100 * no + 10 * i + v) as f32).collect();
            let tensor = Tensor::from_vec(values, (2, 32), &CPU)?;
            let tensor = QTensor::quantize(&tensor, GgmlDType::F32)?;
            tensors.push((format!("part{no}.{i}"), tensor));
        }
        let path = folder.join(format!("m-{:05}-of-{count:05}.gguf", no + 1));
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
        let tensors: Vec<_> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
        gguf_file::write(&mut std::fs::File::create(&path)?, &metadata, &tensors)?;
        paths.push(path);
    }
    Ok(paths)
}

#[test]
fn models_in_several_files() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let paths = parts(folder.path(), 3)?;
    // Any part opens the whole model.
    for path in &paths {
        let (content, mut reader) = gguf_file::open(path)?;
        // SAFETY: nobody changes the files while they are mapped.
        let mapped = unsafe { MmapedContent::new(path)? };
        assert_eq!(content.metadata["general.name"].to_string()?, "in parts");
        assert_eq!(gguf_file::part_of(&content.metadata)?, None);
        assert_eq!(content.tensor_infos.len(), 5);
        for (name, first) in [("part0.0", 0.), ("part1.1", 110.), ("part2.0", 200.)] {
            let read = content.tensor(&mut reader, name, &CPU)?.dequantize(&CPU)?;
            let row = read.to_vec2::<f32>()?;
            assert_eq!((row[0][0], row[1][31]), (first, first + 63.), "{name}");
            assert_same(&mapped.tensor(name, &CPU)?.dequantize(&CPU)?, &read, name)?;
        }
    }
    let error = |path: &std::path::Path| {
        // Without the call stack, which differs.
        let line = |err: candle_core::Error| {
            let text = err.to_string();
            text.lines().next().unwrap_or_default().to_string()
        };
        let err = line(gguf_file::open(path).unwrap_err());
        // SAFETY: as above.
        let mapped = unsafe { MmapedContent::new(path) };
        assert_eq!(line(mapped.unwrap_err()), err);
        err
    };
    // A part on its own reports its number and the total.
    let content = Content::read(&mut std::fs::File::open(&paths[1])?)?;
    assert_eq!(gguf_file::part_of(&content.metadata)?, Some((1, 3)));
    // A different name.
    let renamed = folder.path().join("model.gguf");
    std::fs::copy(&paths[0], &renamed)?;
    let err = error(&renamed);
    assert!(
        err.contains("model.gguf") && err.contains("-00001-of-00003.gguf"),
        "{err}"
    );
    // Two parts with exchanged names.
    std::fs::rename(&paths[2], &renamed)?;
    std::fs::copy(&paths[1], &paths[2])?;
    let err = error(&paths[0]);
    assert!(
        err.contains("m-00003-of-00003.gguf") && err.contains("part 2 of 3"),
        "{err}"
    );
    // A truncated part.
    let whole = std::fs::read(&renamed)?;
    std::fs::write(&paths[2], &whole[..whole.len() - 1])?;
    let err = error(&paths[0]);
    assert!(
        err.contains("m-00003-of-00003.gguf") && err.contains("part2."),
        "{err}"
    );
    // A missing part.
    std::fs::remove_file(&paths[2])?;
    for path in &paths[..2] {
        let err = error(path);
        let wanted = ["m-00003-of-00003.gguf", "part 3 of 3", "no such file"];
        assert!(wanted.iter().all(|part| err.contains(part)), "{err}");
    }
    Ok(())
}

#[test]
fn numbers_of_parts_that_do_not_fit() -> Result<()> {
    for (no, count) in [
        (Value::U16(3), Value::U16(3)),
        (Value::I32(-1), Value::U16(2)),
        (Value::U16(0), Value::String("2".into())),
        (Value::U16(0), Value::U64(u64::MAX)),
    ] {
        let metadata = [("split.no", &no), ("split.count", &count)];
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("m-00001-of-00002.gguf");
        gguf_file::write(&mut std::fs::File::create(&path)?, &metadata, &[])?;
        let err = gguf_file::open(&path).unwrap_err().to_string();
        assert!(err.contains("split.") && err.contains("m-00001"), "{err}");
    }
    Ok(())
}

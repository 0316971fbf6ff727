//! PyTorch's checkpoints. The files have the format of `torch.save`; `generate.py` makes them.

use std::path::{Path, PathBuf};

use candle_core::pickle::{self, Object, OpCode, PthTensors, Stack};
use candle_core::{DType, Error, Result, Tensor};

fn file(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files");
    PathBuf::from(folder).join(name)
}

fn as_f64(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

const SIGNED: [f64; 6] = [-2., -1., 0., 1., 2., 3.];
const UNSIGNED: [f64; 6] = [2., 1., 0., 1., 2., 3.];

#[test]
fn storages_of_all_dtypes() -> Result<()> {
    let expected = [
        ("FloatStorage", DType::F32, SIGNED),
        ("DoubleStorage", DType::F64, SIGNED),
        ("HalfStorage", DType::F16, SIGNED),
        ("BFloat16Storage", DType::BF16, SIGNED),
        ("LongStorage", DType::I64, SIGNED),
        ("IntStorage", DType::I32, SIGNED),
        ("ShortStorage", DType::I16, SIGNED),
        ("ByteStorage", DType::U8, UNSIGNED),
        // There is no complex dtype: the checkpoint is read without that tensor.
        ("Float8_e4m3fnStorage", DType::F8E4M3, SIGNED),
        ("UntypedStorage", DType::F8E4M3, SIGNED),
        (
            "BoolStorage",
            DType::U8,
            UNSIGNED.map(|x| f64::from(x > 1.)),
        ),
    ];
    let read = pickle::read_all(file("dtypes.pth"))?;
    assert_eq!(read.len(), expected.len());
    for ((name, t), (expected_name, dtype, values)) in read.iter().zip(expected) {
        assert_eq!(
            (name.as_str(), t.dtype(), t.dims()),
            (expected_name, dtype, &[2, 3][..])
        );
        assert_eq!(as_f64(t)?, values, "{name}");
    }
    Ok(())
}

#[test]
fn views_share_a_storage() -> Result<()> {
    views("views.pth")
}

/// Protocols 3 to 5 have instructions that protocol 2 lacks.
#[test]
fn all_protocols() -> Result<()> {
    for protocol in 3..=5 {
        views(&format!("protocol{protocol}.pth"))?;
    }
    Ok(())
}

/// Files from PyTorch before 1.6 are not archives.
#[test]
fn legacy_files() -> Result<()> {
    views("legacy.pth")?;
    views("legacy4.pth")?;
    let bytes = std::fs::read(file("legacy.pth"))?;
    let pth = PthTensors::from_bytes(bytes.clone(), Some("model"))?;
    assert_eq!(as_f64(&pth.get("last")?.expect("last"))?, [23.]);
    let all = pickle::read_all_with_key(file("legacy4.pth"), Some("all"))?;
    assert_eq!(all.len(), 11);
    // A file truncated anywhere is an error with the position, never a panic.
    for len in (0..bytes.len()).step_by(7) {
        let cut = PthTensors::from_bytes(bytes[..len].to_vec(), Some("model"));
        assert!(cut.is_err(), "{len} bytes");
    }
    let err = PthTensors::from_bytes(bytes[..bytes.len() - 1].to_vec(), None).err();
    let err = err.expect("a cut file").to_string();
    assert!(
        err.contains("storage") && err.contains("the file has"),
        "{err}"
    );
    Ok(())
}

fn views(name: &str) -> Result<()> {
    let pth = PthTensors::new(file(name), Some("model"))?;
    let check = |name: &str, dims: &[usize], values: &[u8]| -> Result<()> {
        let t = pth.get(name)?.expect(name);
        assert_eq!(t.dims(), dims, "{name}");
        let values: Vec<f64> = values.iter().copied().map(f64::from).collect();
        assert_eq!(as_f64(&t)?, values, "{name}");
        Ok(())
    };
    let count: Vec<u8> = (0..24).collect();
    check("whole", &[2, 3, 4], &count)?;
    let transposed: Vec<u8> = (0..6).flat_map(|i| [i, i + 6, i + 12, i + 18]).collect();
    check("transposed", &[6, 4], &transposed)?;
    let permuted = (0..4).flat_map(|k| (0..6).map(move |ij| 4 * ij + k));
    check("permuted", &[4, 2, 3], &permuted.collect::<Vec<u8>>())?;
    check("rows", &[2, 4], &count[8..16])?;
    check("columns", &[3, 2], &[2, 3, 10, 11, 18, 19])?;
    check("last", &[], &[23])?;
    check("expanded", &[3, 2], &[5, 6, 5, 6, 5, 6])?;
    check("none", &[0, 4], &[])?;
    for name in ["parameter", "subclass"] {
        assert_eq!(as_f64(&pth.get(name)?.expect(name))?, SIGNED, "{name}");
    }
    assert!(pth.get("nothing")?.is_none());

    let info = &pth.tensor_infos()["columns"];
    // A legacy file has no entries: storages have keys only.
    let storage = match name.strip_suffix(".pth") {
        Some(folder) if !folder.starts_with("legacy") => format!("{folder}/data/0"),
        _ => "0".to_string(),
    };
    assert_eq!((info.storage_size, info.layout.start_offset()), (24, 8));
    assert_eq!(
        (info.path.as_str(), info.layout.stride()),
        (storage.as_str(), &[8, 1][..])
    );
    Ok(())
}

#[test]
fn keys() -> Result<()> {
    let infos = pickle::read_pth_tensor_info(file("views.pth"), false, Some("model"))?;
    let names: Vec<&str> = infos.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names[..3], ["whole", "transposed", "permuted"]);
    // The outer dictionary contains dictionaries, no tensors.
    assert!(pickle::read_all(file("views.pth"))?.is_empty());
    assert_eq!(
        pickle::read_all_with_key(file("views.pth"), Some("model"))?.len(),
        10
    );

    let err = pickle::read_all_with_key(file("views.pth"), Some("ema"))
        .unwrap_err()
        .to_string();
    assert!(
        err.contains("views.pth") && err.contains("no key ema"),
        "{err}"
    );
    let err = pickle::read_all_with_key(file("views.pth"), Some("epoch"))
        .unwrap_err()
        .to_string();
    assert!(
        err.contains("found 3") && err.contains("state_dict"),
        "{err}"
    );
    Ok(())
}

#[test]
fn byte_orders_and_compression() -> Result<()> {
    for (name, tensors) in [
        ("big_endian.pth", vec!["w", "h"]),
        ("old_deflated.pth", vec!["w"]),
    ] {
        let pth = PthTensors::from_bytes(std::fs::read(file(name))?, None)?;
        for tensor in tensors {
            assert_eq!(
                as_f64(&pth.get(tensor)?.expect(tensor))?,
                SIGNED,
                "{name} {tensor}"
            );
        }
    }
    Ok(())
}

fn value(pickle: &[u8]) -> Result<Object> {
    let mut stack = Stack::empty();
    stack.read_loop(&mut &*pickle)?;
    stack.finalize()
}

fn text(text: &str) -> Object {
    Object::Unicode(text.to_string())
}

#[test]
fn every_instruction() -> Result<()> {
    let int = Object::Int;
    let class = || Object::Class {
        module_name: "os".to_string(),
        class_name: "system".to_string(),
    };
    let boxed = |object| Box::new(object);
    let cases: Vec<(&[u8], Object)> = vec![
        (b"\x80\x02N.", Object::None),
        (b"\x88.", Object::Bool(true)),
        (b"\x89.", Object::Bool(false)),
        (b"K\xff.", int(255)),
        (b"M\x01\x02.", int(513)),
        (b"J\xfe\xff\xff\xff.", int(-2)),
        (b"\x8a\x02\x00\x80.", Object::Long(-32768)),
        (b"G\x3f\xf8\0\0\0\0\0\0.", Object::Float(1.5)),
        (b"X\x02\0\0\0\xc3\xa4.", text("ä")),
        (b").", Object::Tuple(vec![])),
        (
            b"(K\x01K\x02K\x03K\x04t.",
            Object::Tuple((1..5).map(int).collect()),
        ),
        (b"K\x01\x85.", Object::Tuple(vec![int(1)])),
        (b"K\x01K\x02\x86.", Object::Tuple(vec![int(1), int(2)])),
        (
            b"K\x01K\x02K\x03\x87.",
            Object::Tuple((1..4).map(int).collect()),
        ),
        (
            b"]K\x01a(K\x02K\x03e.",
            Object::List((1..4).map(int).collect()),
        ),
        (
            b"}K\x01Ns(K\x02NK\x03Nu.",
            Object::Dict((1..4).map(|i| (int(i), Object::None)).collect()),
        ),
        (b"(K\x01Nd.", Object::Dict(vec![(int(1), Object::None)])),
        (
            b"K\x07q\x05K\x08r\x00\x01\0\0h\x05j\x00\x01\0\0\x87.",
            Object::Tuple(vec![int(8), int(7), int(8)]),
        ),
        (b"cos\nsystem\n.", class()),
        (b"K\x01Q.", Object::PersistentLoad(boxed(int(1)))),
        (
            b"cos\nsystem\nK\x01\x85R.",
            Object::Reduce {
                callable: boxed(class()),
                args: boxed(Object::Tuple(vec![int(1)])),
            },
        ),
        (
            b"cos\nsystem\n)\x81.",
            Object::Reduce {
                callable: boxed(class()),
                args: boxed(Object::Tuple(vec![])),
            },
        ),
        (
            b"cos\nsystem\nNb.",
            Object::Build {
                callable: boxed(class()),
                args: boxed(Object::None),
            },
        ),
        (
            b"ccollections\nOrderedDict\n)R}K\x01Nsb.",
            Object::Dict(vec![(int(1), Object::None)]),
        ),
        (
            b"ccollections\nOrderedDict\n]]K\x01aNaa\x85R.",
            Object::Dict(vec![(int(1), Object::None)]),
        ),
    ];
    for (pickle, expected) in cases {
        assert_eq!(value(pickle)?, expected, "{}", pickle.escape_ascii());
    }
    let call = |module: &str, name: &str, args: Vec<Object>| Object::Reduce {
        callable: boxed(Object::Class {
            module_name: module.to_string(),
            class_name: name.to_string(),
        }),
        args: boxed(Object::Tuple(args)),
    };
    let bytes = |latin1: &str| call("_codecs", "encode", vec![text(latin1), text("latin1")]);
    let others: Vec<(&[u8], Object)> = vec![
        (b"\x80\x04\x95\x02\0\0\0\0\0\0\0N.", Object::None),
        (b"\x8c\x02\xc3\xa4.", text("\u{e4}")),
        (b"\x8d\x02\0\0\0\0\0\0\0\xc3\xa4.", text("\u{e4}")),
        (b"U\x02\xe4b.", text("\u{e4}b")),
        (b"T\x01\0\0\0a.", text("a")),
        (b"C\x02a\xff.", bytes("a\u{ff}")),
        (b"B\x01\0\0\0a.", bytes("a")),
        (b"\x8e\x01\0\0\0\0\0\0\0a.", bytes("a")),
        (
            b"\x96\x01\0\0\0\0\0\0\0a.",
            call("builtins", "bytearray", vec![bytes("a")]),
        ),
        (b"\x8b\x02\0\0\0\x00\x80.", Object::Long(-32768)),
        (
            b"\x8f(K\x01K\x02\x90.",
            call("builtins", "set", vec![Object::List(vec![int(1), int(2)])]),
        ),
        (
            b"(K\x01\x91.",
            call("builtins", "frozenset", vec![Object::List(vec![int(1)])]),
        ),
        (
            b"cos\nsystem\n)}\x92.",
            call(
                "copyreg",
                "__newobj_ex__",
                vec![class(), Object::Tuple(vec![]), Object::Dict(vec![])],
            ),
        ),
        (b"\x8c\x02os\x8c\x06system\x93.", class()),
        (
            b"K\x07\x94K\x08\x94h\x00h\x01\x86.",
            Object::Tuple(vec![int(7), int(8)]),
        ),
        (b"(K\x01l.", Object::List(vec![int(1)])),
        (b"K\x01K\x020.", int(1)),
        (b"K\x01(K\x02K\x031.", int(1)),
        (b"K\x012\x86.", Object::Tuple(vec![int(1), int(1)])),
    ];
    for (pickle, expected) in others {
        assert_eq!(value(pickle)?, expected, "{}", pickle.escape_ascii());
    }
    let known = (0..=255)
        .filter(|&code| OpCode::try_from(code).is_ok())
        .count();
    assert_eq!(known, 33);
    assert_eq!(OpCode::try_from(0x8c), Err(0x8c));
    Ok(())
}

#[test]
fn a_state_is_seen_by_all_who_share_the_object() -> Result<()> {
    let Object::Tuple(items) = value(b"cos\nsystem\n)\x81q\0K\x01bh\0Nb\x85h\0\x86.")? else {
        panic!("a tuple was written")
    };
    let Object::Tuple(inner) = &items[0] else {
        panic!("a tuple was written")
    };
    assert_eq!(inner[0], items[1]);
    // A state applied to a shared constant changes no other `None`.
    let Object::Tuple(items) = value(b"NK\x01bN\x86.")? else {
        panic!("a tuple was written")
    };
    assert_eq!(items[1], Object::None);
    Ok(())
}

#[test]
fn objects_taken_apart() {
    assert_eq!(Object::Int(3).int(), Ok(3));
    assert_eq!(Object::Long(3).int(), Err(Object::Long(3)));
    assert_eq!(Object::Int(3).int_or_long(), Ok(3));
    assert_eq!(Object::Long(1 << 40).int_or_long(), Ok(1 << 40));
    assert_eq!(Object::Bool(true).bool(), Ok(true));
    assert_eq!(Object::None.none(), Ok(()));
    assert_eq!(text("a").unicode(), Ok("a".to_string()));
    assert_eq!(String::try_from(Object::Int(1)), Err(Object::Int(1)));
    assert_eq!(usize::try_from(Object::Long(5)), Ok(5));
    assert_eq!(usize::try_from(Object::Int(-1)), Err(Object::Int(-1)));
    let pair = Object::Tuple(vec![Object::Int(1), Object::Int(2)]);
    assert_eq!(Vec::<usize>::try_from(pair), Ok(vec![1, 2]));
    let mixed = Object::Tuple(vec![Object::Int(1), Object::None]);
    assert_eq!(Vec::<usize>::try_from(mixed), Err(Object::None));
    let err = Error::from(Object::Dict(vec![])).to_string();
    assert!(err.contains("a dictionary of 0"), "{err}");
    let no_tensor = Object::Int(1).into_tensor_info(text("a"), Path::new("data"));
    assert!(no_tensor.unwrap().is_none());
}

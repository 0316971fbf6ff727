use super::common::{assert_close, assert_fails, assert_values, data};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::var_builder::{SafeTensorWithRouting, Shard, ShardedSafeTensors};
use candle_nn::{linear, VarBuilder, VarMap};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn tensors(dev: &Device) -> Result<HashMap<String, Tensor>> {
    let names = [
        ("a.weight", [2, 3], DType::F32),
        ("a.b.weight", [4, 1], DType::BF16),
    ];
    names
        .into_iter()
        .map(|(name, dims, dtype)| Ok((name.to_string(), data(&dims, dtype, dev)?)))
        .collect()
}

fn save(dir: &Path, name: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    candle_core::safetensors::save(&tensors(&Device::Cpu)?, &path)?;
    Ok(path)
}

/// NumPy has no bf16, so that one is widened.
fn save_npz(dir: &Path) -> Result<PathBuf> {
    let path = dir.join("weights.npz");
    let arrays = tensors(&Device::Cpu)?.into_iter();
    let arrays = arrays.map(|(name, t)| Ok((name, t.to_dtype(DType::F32)?)));
    Tensor::write_npz(&arrays.collect::<Result<Vec<_>>>()?, &path)?;
    Ok(path)
}

fn names_and_places(dev: &Device) -> Result<()> {
    let vb = VarBuilder::from_tensors(tensors(&Device::Cpu)?, DType::F32, dev);
    let a = vb.pp("a");
    assert_eq!(
        (vb.prefix(), a.prefix(), a.pp("b").prefix()),
        (String::new(), "a".into(), "a.b".into())
    );
    assert_eq!(a.pp("b").root().prefix(), "");
    assert_eq!(a.set_prefix("c.d").prefix(), "c.d");
    assert!(a.contains_tensor("weight") && a.contains_tensor("b.weight"));
    assert!(!a.contains_tensor("bias") && !vb.contains_tensor("weight"));

    let weight = a.get((2, 3), "weight")?;
    assert!(weight.device().same_device(dev));
    assert_close("a.weight", &weight, &tensors(dev)?["a.weight"], 0.);
    // From bf16, in the builder's dtype, in another, and in that of a builder made from it.
    let b = a.pp("b");
    assert_eq!(b.get((4, 1), "weight")?.dtype(), DType::F32);
    assert_eq!(
        b.get_unchecked_dtype("weight", DType::F16)?.dtype(),
        DType::F16
    );
    assert_eq!(
        b.to_dtype(DType::BF16).get_unchecked("weight")?.dtype(),
        DType::BF16
    );
    assert_eq!(b.set_dtype(DType::BF16).dtype(), DType::BF16);
    Ok(())
}

fn every_source_agrees(dev: &Device) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = save(dir.path(), "weights.safetensors")?;
    let bytes = std::fs::read(&path)?;
    // SAFETY: nothing else writes to this directory.
    let mapped = unsafe { VarBuilder::from_mmaped_safetensors(&[&path], DType::F32, dev)? };
    let sources = [
        mapped,
        VarBuilder::from_buffered_safetensors(bytes.clone(), DType::F32, dev)?,
        VarBuilder::from_slice_safetensors(&bytes, DType::F32, dev)?,
        VarBuilder::from_tensors(tensors(dev)?, DType::F32, dev),
        VarBuilder::from_npz(save_npz(dir.path())?, DType::F32, dev)?,
        VarBuilder::from_backend(
            Box::new(SafeTensorWithRouting::new(&[&bytes])?),
            DType::F32,
            dev.clone(),
        ),
    ];
    let expected = tensors(dev)?;
    for vb in sources {
        for (name, dims) in [("a.weight", (2, 3)), ("a.b.weight", (4, 1))] {
            let got = vb.get(dims, name)?;
            assert!(got.device().same_device(dev));
            assert_close(name, &got, &expected[name], 0.);
            // Rounded to 16 bits in between.
            let got = vb.to_dtype(DType::F16).get(dims, name)?;
            assert_eq!(got.dtype(), DType::F16);
            assert_close(name, &got, &expected[name], 1e-3);
        }
    }
    let zeros = VarBuilder::zeros(DType::F16, dev).get(3, "anything")?;
    assert_values("zeros", &zeros, &[0.; 3], 0.);
    Ok(())
}

fn errors_say_what_and_where(dev: &Device) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = save(dir.path(), "weights.safetensors")?;
    let other = save(dir.path(), "other.safetensors")?;
    let bytes = std::fs::read(&path)?;
    let size = bytes.len().to_string();
    // SAFETY: nothing else writes to this directory.
    let mapped = unsafe { VarBuilder::from_mmaped_safetensors(&[&path, &other], DType::F32, dev)? };
    // The backend of a single file names it already: once is enough.
    let single = unsafe { VarBuilder::from_mmaped_safetensors(&[&path], DType::F32, dev)? };
    let message = single.get(2, "b").unwrap_err().to_string();
    assert_eq!(
        message.matches("weights.safetensors").count(),
        1,
        "{message}"
    );

    let vars = VarMap::new();
    vars.get(
        (2, 3),
        "a.weight",
        candle_nn::Init::Const(1.),
        DType::F32,
        dev,
    )?;
    let sources = [
        (mapped, vec!["weights.safetensors", "other.safetensors"]),
        (
            VarBuilder::from_slice_safetensors(&bytes, DType::F32, dev)?,
            vec![size.as_str(), "bytes"],
        ),
        (
            VarBuilder::from_tensors(tensors(dev)?, DType::F32, dev),
            vec!["2 given tensors"],
        ),
        (
            VarBuilder::from_varmap(&vars, DType::F32, dev),
            vec!["VarMap"],
        ),
    ];
    for (vb, places) in sources {
        let mut parts = vec!["cannot find", "a.c.weight"];
        parts.extend(&places);
        assert_fails(vb.pp("a").pp("c").get_unchecked("weight"), &parts);
        let mut parts = vec!["a.weight", "[3, 2]", "[2, 3]"];
        parts.extend(&places);
        assert_fails(vb.pp("a").get((3, 2), "weight"), &parts);
        assert_fails(linear(2, 3, vb.pp("a")), &parts);
    }
    Ok(())
}

fn broken_files(dev: &Device) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = save(dir.path(), "weights.safetensors")?;
    let bytes = std::fs::read(&path)?;
    let cut = dir.path().join("cut.safetensors");
    std::fs::write(&cut, &bytes[..bytes.len() - 3])?;
    let missing = dir.path().join("missing.safetensors");
    for path in [&cut, &missing] {
        // SAFETY: nothing else writes to this directory.
        let result = unsafe { VarBuilder::from_mmaped_safetensors(&[path], DType::F32, dev) };
        assert_fails(result, &[path.file_name().unwrap().to_str().unwrap()]);
    }
    assert!(VarBuilder::from_slice_safetensors(&bytes[..20], DType::F32, dev).is_err());
    assert!(VarBuilder::from_buffered_safetensors(vec![], DType::F32, dev).is_err());
    Ok(())
}

fn renamed(dev: &Device) -> Result<()> {
    let vb = VarBuilder::from_tensors(tensors(dev)?, DType::F32, dev);
    let vb = vb.rename_f(|name| name.replace("model.", "a."));
    let model = vb.pp("model");
    assert!(model.contains_tensor("b.weight") && !vb.contains_tensor("weight"));
    assert_eq!(model.get((2, 3), "weight")?.dims(), &[2, 3]);
    let parts = ["a.bias", "2 given tensors"];
    assert_fails(model.get(3, "bias"), &parts);
    let message = model.get(3, "bias").unwrap_err().to_string();
    assert_eq!(message.matches("given tensors").count(), 1, "{message}");
    Ok(())
}

fn variables_in_files(dev: &Device) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("vars.safetensors");
    let init = candle_nn::init::DEFAULT_KAIMING_UNIFORM;
    let mut first = VarMap::new();
    let value = first.get((3, 2), "w", init, DType::F32, dev)?.copy()?;
    first.save(&path)?;

    let mut second = VarMap::new();
    let w = second.get((3, 2), "w", init, DType::F32, dev)?;
    second.load(&path)?;
    assert_close("loaded", &w, &value, 0.);
    second.set_one("w", (&value * 2.)?)?;
    assert_close("set", &w, &(&value * 2.)?, 0.);
    first.set([("w", value.zeros_like()?)].into_iter())?;
    assert_values("zeros", &first.all_vars()[0], &[0.; 6], 0.);

    assert_fails(
        second.set_one("v", &value),
        &["v", "no variable has that name"],
    );
    assert_fails(second.set_one("w", value.t()?), &["variable w"]);
    second.get(1, "v", init, DType::F32, dev)?;
    assert_fails(second.load(&path), &["variable v", "vars.safetensors"]);
    Ok(())
}

fn old_names_of_norms(dev: &Device) -> Result<()> {
    let tensors = HashMap::from([
        ("gamma".to_string(), Tensor::new(&[2f32, 3.], dev)?),
        ("beta".to_string(), Tensor::new(&[4f32, 5.], dev)?),
    ]);
    let vb = VarBuilder::from_tensors(tensors, DType::F32, dev);
    let norm = candle_nn::layer_norm(2, 1e-5, vb)?;
    assert_values("gamma", norm.weight(), &[2., 3.], 0.);
    assert_values("beta", norm.bias().unwrap(), &[4., 5.], 0.);
    Ok(())
}

/// The parts of a tensor, put together again.
fn parts_of_tensors(dev: &Device) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("weights.safetensors");
    let whole = data(&[4, 6, 2], DType::F32, &Device::Cpu)?;
    candle_core::safetensors::save(&HashMap::from([("w", whole.clone())]), &path)?;
    // SAFETY: nothing else writes to this directory.
    let vb = unsafe { ShardedSafeTensors::var_builder(&[&path], DType::F32, dev)? };
    let shard = |dim, rank, world_size| Shard {
        dim,
        rank,
        world_size,
    };
    for (dim, world_size) in [(0, 2), (0, 4), (1, 3), (2, 2), (1, 1)] {
        let mut parts = vec![];
        for rank in 0..world_size {
            let part = vb.get_with_hints((), "w", shard(dim, rank, world_size))?;
            assert!(part.device().same_device(dev));
            let size = whole.dim(dim)? / world_size;
            let expected = whole.narrow(dim, rank * size, size)?;
            assert_close("part", &part, &expected, 0.);
            // Asked for by its own shape, or by that of the whole.
            for dims in [expected.dims(), whole.dims()] {
                vb.get_with_hints(dims, "w", shard(dim, rank, world_size))?;
            }
            parts.push(part);
        }
        assert_close("all", &Tensor::cat(&parts, dim)?, &whole, 0.);
    }
    assert_close("default", &vb.get((4, 6, 2), "w")?, &whole, 0.);
    let half = vb.to_dtype(DType::F16);
    let part = half.get_with_hints((), "w", shard(1, 2, 3))?;
    assert_eq!((part.dtype(), part.dims()), (DType::F16, &[4, 2, 2][..]));

    assert!(vb.contains_tensor("w") && !vb.contains_tensor("v"));
    assert_fails(
        vb.get_with_hints((), "w", shard(0, 0, 3)),
        &["w", "[4, 6, 2]", "3 equal"],
    );
    assert_fails(
        vb.get_with_hints((), "w", shard(3, 0, 2)),
        &["no dimension 3"],
    );
    assert_fails(vb.get_with_hints((), "w", shard(0, 2, 2)), &["part 2 of 2"]);
    assert_fails(
        vb.get_with_hints((3, 6, 2), "w", shard(0, 0, 2)),
        &["w", "weights.safetensors", "[2, 6, 2]"],
    );
    assert_fails(vb.get((), "v"), &["v", "weights.safetensors"]);
    Ok(())
}

/// Checkpoints of candle-core's tests, one with its tensors in a dictionary.
fn checkpoints(dev: &Device) -> Result<()> {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../candle-core/tests/files");
    for (file, key) in [("old_deflated.pth", None), ("views.pth", Some("model"))] {
        let path = files.join(file);
        let expected = candle_core::pickle::read_all_with_key(&path, key)?;
        let vb = match key {
            None => VarBuilder::from_pth(&path, DType::F32, dev)?,
            Some(key) => VarBuilder::from_pth_with_state(&path, DType::F32, key, dev)?,
        };
        assert!(!expected.is_empty() && !vb.contains_tensor("nothing"));
        for (name, tensor) in expected {
            assert!(vb.contains_tensor(&name));
            let got = vb.get(tensor.dims(), &name)?;
            assert!(got.device().same_device(dev));
            assert_close(&name, &got, &tensor.to_dtype(DType::F32)?, 0.);
            assert_fails(vb.get((1, 2, 3, 4, 5), &name), &[&name, file]);
        }
        assert_fails(vb.get(1, "nothing"), &["nothing", file]);
        assert!(VarBuilder::from_pth_with_state(&path, DType::F32, "nothing", dev).is_err());
    }
    Ok(())
}

fn several_files_in_memory(dev: &Device) -> Result<()> {
    let bytes = |name: &str, value: f32| -> Result<Vec<u8>> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("weights.safetensors");
        let tensor = Tensor::new(&[value], &Device::Cpu)?;
        candle_core::safetensors::save(&HashMap::from([(name, tensor)]), &path)?;
        Ok(std::fs::read(path)?)
    };
    let (a, b) = (bytes("a", 1.)?, bytes("b", 2.)?);
    let files = SafeTensorWithRouting::new(&[&a, &b])?;
    let vb = VarBuilder::from_backend(Box::new(files), DType::F32, dev.clone());
    assert!(vb.contains_tensor("a") && vb.contains_tensor("b") && !vb.contains_tensor("c"));
    assert_values("a", &vb.get(1, "a")?, &[1.], 0.);
    assert_values("b", &vb.get_unchecked("b")?, &[2.], 0.);
    assert_fails(vb.get(2, "b"), &["b", "[2]", "[1]"]);
    assert_fails(vb.get(1, "c"), &["cannot find", "c"]);
    let broken = SafeTensorWithRouting::new(&[&a, &b[..9]]);
    assert_fails(broken, &["safetensors 1 of 2"]);
    Ok(())
}

test_device!(parts_of_tensors);
test_device!(checkpoints);
test_device!(several_files_in_memory);
test_device!(names_and_places);
test_device!(every_source_agrees);
test_device!(errors_say_what_and_where);
test_device!(broken_files);
test_device!(renamed);
test_device!(variables_in_files);
test_device!(old_names_of_norms);

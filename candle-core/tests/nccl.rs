//! Groups over NCCL. Tests that need two cards are ignored by default:
//! `NCCL_NVLS_ENABLE=0 cargo test -p candle-core --features cuda --test core nccl:: -- --ignored --test-threads 1`.

use std::process::Command;
use std::time::{Duration, Instant};

use candle_core::cuda_backend::{libraries_report, NcclGroup};
use candle_core::distributed::{on_devices, Communicator, LocalGroup, ProcessGroup};
use candle_core::{bail, CudaDevice, DType, Device, Result, Tensor, Var};

use crate::distributed::address;

const CPU: &Device = &Device::Cpu;

/// Timeout of calls that should succeed: long for a slow machine, short for a failing test.
const PATIENCE: Duration = Duration::from_secs(20);

fn card(ordinal: usize) -> Result<CudaDevice> {
    CudaDevice::new_with_stream(ordinal)
}

/// Runs `rank` on each rank in a thread, with its group and its device. Returns the results in rank order; a panic counts as an error.
fn in_threads<G: Send, T: Send>(
    groups: Vec<G>,
    devices: &[Device],
    rank: impl Fn(G, &Device) -> Result<T> + Sync,
) -> Vec<std::result::Result<T, String>> {
    let rank = &rank;
    std::thread::scope(|scope| {
        let ranks = groups.into_iter().zip(devices);
        let threads: Vec<_> = ranks
            .map(|(group, device)| scope.spawn(move || rank(group, device)))
            .collect();
        let threads = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result.map_err(|err| err.to_string()),
            Err(_) => Err("panic".to_string()),
        });
        threads.collect()
    })
}

#[test]
fn cuda_one_rank_needs_no_nccl() -> Result<()> {
    let card = card(0)?;
    let device = Device::Cuda(card.clone());
    let control = ProcessGroup::connect("nowhere", 0, 1)?;
    let mut groups = NcclGroup::ranks(std::slice::from_ref(&card))?;
    groups.push(NcclGroup::connect(card, control)?);
    let xs = Tensor::arange(0u32, 6, &device)?.reshape((2, 3))?.t()?;
    for group in groups {
        assert_eq!((group.rank(), group.world_size()), (0, 1));
        let results = [
            group.all_reduce(&xs)?,
            group.all_gather(&xs, 1)?,
            group.broadcast(&xs, 0)?,
        ];
        for result in results {
            assert!(result.is_contiguous());
            assert_eq!(result.to_vec2::<u32>()?, [[0, 3], [1, 4], [2, 5]]);
        }
        let err = group.all_gather(&xs, 2).unwrap_err().to_string();
        assert!(err.contains("dimension 2"), "{err}");
        let err = group.broadcast(&xs, 1).unwrap_err().to_string();
        assert!(err.contains("from rank 1, but there are 1"), "{err}");
        let tracked = Var::from_tensor(&xs.to_dtype(DType::F32)?)?;
        let err = group.all_reduce(tracked.as_tensor()).unwrap_err();
        assert!(err.to_string().contains("detach"), "{err}");
    }
    Ok(())
}

#[test]
fn cuda_devices_that_cannot_form_a_group_are_refused() -> Result<()> {
    let err = NcclGroup::ranks(&[]).unwrap_err().to_string();
    assert!(err.contains("0 ranks"), "{err}");
    let twice = [card(0)?, card(0)?];
    let err = NcclGroup::ranks(&twice).unwrap_err().to_string();
    assert!(err.contains("one rank per device"), "{err}");
    // A group of both devices still works: it goes through the host.
    let devices = twice.map(Device::Cuda);
    let sums = in_threads(on_devices(&devices)?, &devices, |group, device| {
        group
            .all_reduce(&Tensor::new(3u32, device)?)?
            .to_scalar::<u32>()
    });
    assert_eq!(sums, [Ok(6), Ok(6)]);
    Ok(())
}

/// Two ranks on one card cannot form a group, whether or not NCCL is installed. Both ranks get an error.
#[test]
fn cuda_a_group_that_cannot_be_is_an_error_of_all_ranks() -> Result<()> {
    let absent = libraries_report()
        .into_iter()
        .find_map(|library| library.absent.filter(|_| library.name == "NCCL"));
    let address = address();
    let errors = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let address = &address;
            scope.spawn(move || {
                let control = ProcessGroup::connect_with_timeout(address, rank, 2, PATIENCE)?;
                NcclGroup::connect(card(0)?, control)
            })
        });
        ranks.map(|rank| rank.join().unwrap().unwrap_err().to_string())
    });
    if absent.is_some() {
        for err in errors {
            assert!(err.contains("pip install nvidia-nccl"), "{err}");
        }
    }
    Ok(())
}

/// Opens two cards.
fn cards() -> Result<[CudaDevice; 2]> {
    match candle_core::cuda_backend::cards()?.len() {
        0 | 1 => bail!("two cards are needed"),
        _ => Ok([card(0)?, card(1)?]),
    }
}

/// Returns numbers whose sums every dtype represents exactly.
fn numbers(shape: &[usize], rank: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let len = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..len).map(|i| ((i * 7 + rank * 3) % 29) as f32).collect();
    Tensor::from_vec(values, shape, CPU)?
        .to_dtype(dtype)?
        .to_device(device)
}

const SUMS: [DType; 8] = [
    DType::U8,
    DType::U32,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
];

/// Calls every collective, and returns the results as f64.
fn everything(group: &dyn Communicator, device: &Device) -> Result<Vec<Vec<f64>>> {
    let mut results = Vec::new();
    let mut push = |result: Tensor| -> Result<()> {
        assert!(result.is_contiguous());
        assert!(result.device().same_device(device));
        let flat = result.flatten_all()?.to_device(CPU)?;
        results.push(flat.to_dtype(DType::F64)?.to_vec1()?);
        Ok(())
    };
    let rank = group.rank();
    for dtype in SUMS.into_iter().chain([DType::I16, DType::F8E4M3]) {
        for shape in [&[0, 3][..], &[1], &[2, 3, 5], &[257], &[3, 70_001]] {
            let xs = numbers(shape, rank, dtype, device)?;
            if SUMS.contains(&dtype) {
                push(group.all_reduce(&xs)?)?;
            }
            for dim in 0..shape.len() {
                push(group.all_gather(&xs, dim)?)?;
            }
            for root in 0..group.world_size() {
                push(group.broadcast(&xs, root)?)?;
            }
        }
        // Neither contiguous nor at the start of its storage.
        let xs = numbers(&[6, 5], rank, dtype, device)?
            .narrow(0, 2, 3)?
            .t()?;
        push(group.all_gather(&xs, 1)?)?;
        push(group.broadcast(&xs, 1)?)?;
        let inside = numbers(&[6, 5], rank, dtype, device)?.narrow(0, 3, 2)?;
        push(group.broadcast(&inside, 1)?)?;
    }
    Ok(results)
}

fn expected() -> Result<Vec<Vec<f64>>> {
    let groups = LocalGroup::ranks(2)?;
    let mut all = in_threads(groups, &[Device::Cpu, Device::Cpu], |group, device| {
        everything(&group, device)
    });
    Ok(all.swap_remove(0).unwrap())
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards_give_what_the_host_gives() -> Result<()> {
    let cards = cards()?;
    let devices = cards.clone().map(Device::Cuda);
    let expected = expected()?;
    let all = in_threads(NcclGroup::ranks(&cards)?, &devices, |group, device| {
        let results = everything(&group, device)?;
        // A tensor on the host remains on the host.
        let sum = group.all_reduce(&Tensor::new(&[1f32, 2.], CPU)?)?;
        assert!(sum.device().is_cpu());
        assert_eq!(sum.to_vec1::<f32>()?, [2., 4.]);
        Ok(results)
    });
    for results in all {
        assert!(results.unwrap() == expected);
    }
    Ok(())
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards_have_no_sums_of_f8() -> Result<()> {
    let cards = cards()?;
    let devices = cards.clone().map(Device::Cuda);
    let all = in_threads(NcclGroup::ranks(&cards)?, &devices, |group, device| {
        group.all_reduce(&numbers(&[4], 0, DType::F8E4M3, device)?)
    });
    for result in all {
        let err = result.unwrap_err();
        assert!(err.contains("all_reduce"), "{err}");
    }
    Ok(())
}

/// Consecutive calls that the host does not wait for, and a rank that leaves after its own calls.
#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards_keep_the_order_of_many_calls() -> Result<()> {
    let cards = cards()?;
    let devices = cards.clone().map(Device::Cuda);
    let all = in_threads(NcclGroup::ranks(&cards)?, &devices, |group, device| {
        let mut xs = Tensor::full(1f32, 1000, device)?;
        for _ in 0..500 {
            xs = (group.all_reduce(&xs)? * 0.5)?;
            xs = (xs + 1.)?;
        }
        drop(group);
        xs.to_vec1::<f32>()
    });
    for result in all {
        assert_eq!(result.unwrap(), vec![501.; 1000]);
    }
    Ok(())
}

/// Recorded sums over all cards of the machine: each launch sums the values of that time, and other calls may come in between.
#[test]
#[ignore = "needs two cards and NCCL"]
fn cards_add_up_what_they_record() -> Result<()> {
    let count = candle_core::cuda_backend::cards()?.len();
    let cards = (0..count).map(card).collect::<Result<Vec<_>>>()?;
    let devices: Vec<Device> = cards.iter().cloned().map(Device::Cuda).collect();
    // The second length exceeds the path in which every card sums by itself, the third the direct path between cards.
    for len in [1000, 300_004, 5_000_000] {
        let all = in_threads(NcclGroup::ranks(&cards)?, &devices, |group, device| {
            let Device::Cuda(card) = device else {
                bail!("not a card")
            };
            let xs = numbers(&[len], group.rank(), DType::F32, device)?;
            let sums = xs.zeros_like()?;
            let work = || {
                let sum = group.all_reduce(&xs)?;
                let sum = group.all_reduce(&(sum * 0.5)?)?;
                sums.slice_set(&sum, 0, 0)
            };
            work()?;
            let mut recording = card.record(work)?;
            let mut results = Vec::new();
            for round in 0..3 {
                xs.slice_set(
                    &numbers(&[len], group.rank() + round, DType::F32, device)?,
                    0,
                    0,
                )?;
                recording.launch()?;
                results.push(sums.to_vec1::<f32>()?);
                results.push(group.all_reduce(&xs)?.to_vec1::<f32>()?);
            }
            Ok(results)
        });
        let all: Vec<_> = all.into_iter().map(|results| results.unwrap()).collect();
        for round in 0..3 {
            let mut sum = vec![0f32; len];
            for rank in 0..count {
                let part = numbers(&[len], rank + round, DType::F32, CPU)?.to_vec1::<f32>()?;
                sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
            let twice: Vec<f32> = sum.iter().map(|x| x * 0.5 * count as f32).collect();
            for results in &all {
                assert!(results[2 * round] == twice && results[2 * round + 1] == sum);
            }
        }
    }
    Ok(())
}

/// The card of rank 0 waits for a call that rank 1 does not make; the read on rank 0 returns the reason.
fn fails(reason: &str, timeout: Duration, ends: impl Fn(NcclGroup) -> Result<()> + Sync) {
    let cards = cards().unwrap();
    let devices = cards.clone().map(Device::Cuda);
    let start = Instant::now();
    let groups = NcclGroup::ranks_with_timeout(&cards, timeout).unwrap();
    let mut all = in_threads(groups, &devices, |group, device| {
        let xs = Tensor::full(1f32, 1000, device)?;
        let first = group.all_reduce(&xs)?.to_vec1::<f32>()?;
        assert_eq!(first, vec![2.; 1000]);
        if group.rank() == 1 {
            return ends(group);
        }
        // A call of a known kind: the host does not wait.
        let waits = group.all_reduce(&xs).and_then(|sum| sum.to_vec1::<f32>());
        let err = waits.unwrap_err().to_string();
        assert!(err.contains(reason), "{err}");
        let err = group.all_reduce(&xs).unwrap_err().to_string();
        assert!(err.contains(reason), "{err}");
        Ok(())
    });
    all.swap_remove(0).unwrap();
    assert!(
        start.elapsed() < PATIENCE + PATIENCE,
        "{:?}",
        start.elapsed()
    );
    // The cards remain usable.
    let again = self::cards().unwrap();
    let devices = again.clone().map(Device::Cuda);
    let groups = NcclGroup::ranks(&again).unwrap();
    for sum in in_threads(groups, &devices, |group, device| {
        group
            .all_reduce(&Tensor::new(3u32, device)?)?
            .to_scalar::<u32>()
    }) {
        assert_eq!(sum.unwrap(), 6);
    }
}

/// Waits until rank 0 has enqueued its call.
fn later() {
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards_where_a_rank_panics() {
    fails("rank 1 panicked", PATIENCE, |_group| {
        later();
        panic!("as the test wants it")
    });
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards_where_a_rank_leaves() {
    fails("rank 1 has left", PATIENCE, |group| {
        later();
        drop(group);
        Ok(())
    });
    fails("rank 1 has left", PATIENCE, |group| {
        drop(group);
        Ok(())
    });
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards_where_a_rank_aborts() {
    fails("rank 1 failed: no bread", PATIENCE, |group| {
        later();
        group.abort("no bread");
        Ok(())
    });
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards_where_ranks_do_not_agree() {
    fails("ranks disagree", PATIENCE, |group| {
        later();
        let err = group.broadcast(&Tensor::new(3u32, CPU)?, 0);
        assert!(err.unwrap_err().to_string().contains("ranks disagree"));
        Ok(())
    });
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards_where_a_rank_does_not_come() {
    fails(
        "ranks [1] did not reach all_reduce",
        Duration::from_secs(2),
        |_group| {
            std::thread::sleep(Duration::from_secs(6));
            Ok(())
        },
    );
}

/// The environment variable that tells a process of [`two_cards_of_two_processes`] its rank, the address, and whether to abort.
const PROCESS: &str = "CANDLE_TEST_NCCL_PROCESS";

fn process(rank: usize, address: &str, dies: bool) -> Command {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process
        .args(["--ignored", "--exact", "nccl::two_cards_of_two_processes"])
        .env(PROCESS, format!("{rank} {address} {dies}"));
    process
}

fn be_process(words: &str) -> Result<()> {
    let words: Vec<&str> = words.split(' ').collect();
    let (rank, dies) = (words[0].parse().unwrap(), words[2] == "true");
    let control = ProcessGroup::connect_with_timeout(words[1], rank, 2, PATIENCE)?;
    let card = card(rank)?;
    let device = Device::Cuda(card.clone());
    let group = NcclGroup::connect(card, control)?;
    assert!(everything(&group, &device)? == expected()?);
    let xs = Tensor::full(1f32, 1000, &device)?;
    group.all_reduce(&xs)?.to_vec1::<f32>()?;
    if dies {
        if rank == 1 {
            later();
            std::process::abort();
        }
        let waits = group.all_reduce(&xs).and_then(|sum| sum.to_vec1::<f32>());
        let err = waits.unwrap_err().to_string();
        assert!(err.contains("rank 1 has left"), "{err}");
    }
    Ok(())
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards_of_two_processes() -> Result<()> {
    if let Ok(words) = std::env::var(PROCESS) {
        return be_process(&words);
    }
    for dies in [false, true] {
        let address = address();
        let mut ranks = [0, 1].map(|rank| process(rank, &address, dies).spawn().unwrap());
        let start = Instant::now();
        let ended = ranks.each_mut().map(|rank| loop {
            if let Some(ended) = rank.try_wait().unwrap() {
                break ended;
            }
            if start.elapsed() > 4 * PATIENCE {
                rank.kill().unwrap();
                panic!("a process hangs");
            }
            std::thread::sleep(Duration::from_millis(20));
        });
        let succeeded = ended.map(|ended| ended.success());
        assert_eq!(succeeded, [true, !dies], "{ended:?}");
    }
    Ok(())
}

/// Measures recorded sums, and unrecorded ops while all cards are busy; for BENCHMARKS.md, with `--nocapture`.
#[test]
#[ignore = "needs two cards and NCCL; prints times"]
fn times_of_sums_and_launches() -> Result<()> {
    const CALLS: usize = 64;
    let count = candle_core::cuda_backend::cards()?.len();
    let cards = (0..count).map(card).collect::<Result<Vec<_>>>()?;
    let devices: Vec<Device> = cards.iter().cloned().map(Device::Cuda).collect();
    let alone = in_threads(vec![(); count], &devices, |(), device| {
        let xs = Tensor::zeros(1024, DType::F16, device)?;
        let mut took = Duration::MAX;
        for _ in 0..4 {
            device.synchronize()?;
            let start = Instant::now();
            for _ in 0..1000 {
                (&xs + 1.)?;
            }
            took = start.elapsed();
        }
        Ok(took.as_secs_f64() * 1e3)
    });
    println!("ops without a group, us: {alone:?}");
    drop((cards, devices));
    for world in [1, 2, 4].into_iter().filter(|world| *world <= count) {
        let cards = (0..world).map(card).collect::<Result<Vec<_>>>()?;
        let devices: Vec<Device> = cards.iter().cloned().map(Device::Cuda).collect();
        let all = in_threads(NcclGroup::ranks(&cards)?, &devices, |group, device| {
            let Device::Cuda(card) = device else {
                bail!("not a card")
            };
            let mut line = String::new();
            for kb in [1, 8, 64, 256, 4096] {
                let xs = Tensor::zeros(kb * 512, DType::F16, device)?;
                let sums = xs.zeros_like()?;
                let work = || {
                    let mut ys = xs.clone();
                    for _ in 0..CALLS {
                        ys = group.all_reduce(&ys)?;
                    }
                    sums.slice_set(&ys, 0, 0)
                };
                work()?;
                device.synchronize()?;
                let mut recording = card.record(work)?;
                let mut took = [Duration::MAX; 2];
                for _ in 0..10 {
                    for (took, recorded) in took.iter_mut().zip([true, false]) {
                        device.synchronize()?;
                        let start = Instant::now();
                        if recorded {
                            recording.launch()?
                        } else {
                            work()?
                        }
                        device.synchronize()?;
                        *took = (*took).min(start.elapsed());
                    }
                }
                let each = took.map(|took| took.as_secs_f64() * 1e6 / CALLS as f64);
                line += &format!("; {kb} KiB {:.1} {:.1}", each[0], each[1]);
            }
            let xs = Tensor::zeros(1024, DType::F16, device)?;
            let host = |ask: &dyn Fn() -> Result<()>| {
                for _ in 0..200 {
                    ask()?;
                }
                device.synchronize()?;
                let start = Instant::now();
                for _ in 0..2000 {
                    ask()?;
                }
                let took = start.elapsed().as_secs_f64() * 1e6 / 2000.;
                device.synchronize()?;
                Ok::<_, candle_core::Error>(took)
            };
            let ys = xs.zeros_like()?;
            let op = host(&|| (&xs + 1.).map(drop))?;
            let launch = host(&|| ys.slice_set(&xs, 0, 0))?;
            // SAFETY: the memory is never read.
            let memory = host(&|| unsafe { card.alloc::<u8>(2048) }.map(drop))?;
            Ok(format!(
                "op {op:.1}, launch {launch:.1}, memory {memory:.1}{line}"
            ))
        });
        for (rank, line) in all.into_iter().enumerate() {
            println!("{world} cards, rank {rank}, us: {}", line.unwrap());
        }
    }
    Ok(())
}

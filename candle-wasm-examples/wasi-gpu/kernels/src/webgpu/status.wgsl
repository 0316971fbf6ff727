// The first fault since the status was read stays.
fn report(code: u32, a: u32, b: u32, c: u32) {
  loop {
    let swap = atomicCompareExchangeWeak(&status[0], 0u, code);
    if swap.exchanged {
      atomicStore(&status[1], a);
      atomicStore(&status[2], b);
      atomicStore(&status[3], c);
      break;
    }
    // It may also fail for no reason.
    if swap.old_value != 0u {
      break;
    }
  }
}

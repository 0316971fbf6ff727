// Without subgroups, sums over SHARERS neighbours go through workgroup memory.

const BY_SUBGROUP = false;

struct Invocation {
  @builtin(local_invocation_index) local: u32,
}

fn number_of(invocation: Invocation) -> u32 {
  return invocation.local;
}

fn over_sharers(x: f32) -> f32 {
  return x;
}

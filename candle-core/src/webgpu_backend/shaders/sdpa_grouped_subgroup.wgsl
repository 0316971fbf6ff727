// Sums over SHARERS neighbours in a subgroup.

const BY_SUBGROUP = true;
const_assert SUBGROUP % SHARERS == 0u && WG % SUBGROUP == 0u;

struct Invocation {
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
}

// Ensures that neighbours by number are neighbours in a subgroup.
fn number_of(invocation: Invocation) -> u32 {
  return invocation.subgroup * SUBGROUP + invocation.lane;
}

fn over_sharers(x: f32) -> f32 {
  var sum = x;
  sum += subgroupShuffleXor(sum, 1u);
  sum += subgroupShuffleXor(sum, 2u);
  sum += subgroupShuffleXor(sum, 4u);
  return sum;
}

// Teams of one invocation: sums and maxima without a barrier. A team is who works on one result, or on a few that share what is read:
// TEAMS teams of WG members each make a workgroup.

struct Invocation {
  @builtin(local_invocation_index) local: u32,
}

// Which of its workgroup's teams an invocation belongs to, and as which member.
fn team_of(invocation: Invocation) -> u32 { return invocation.local; }
fn member(invocation: Invocation) -> u32 { return 0u; }
// Waits for the others of the team.
fn together() {}

const_assert WG == 1u;
var<private> parts: array<f32, COUNT>;

fn reduce(values: array<f32, COUNT>, invocation: Invocation) {
  parts = values;
}

fn total(i: u32) -> f32 {
  return parts[i];
}

fn workgroup_max(value: f32, invocation: Invocation) -> f32 {
  return value;
}

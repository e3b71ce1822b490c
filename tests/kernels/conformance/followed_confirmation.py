def sub(p,*prs):
    s=open(p).read()
    for a,b in prs:
        assert a in s,(p,a); s=s.replace(a,b,1)
    open(p,'w').write(s)
sub('kernels/solver/stopping.h',('#define R2\n','//R2\n'),('  kConfirm,    //','  kConfirm,\n  kConfirmFollowed,  //'),
 ('  if (next == NextPass::kConfirmDisplaced)','  if (next == NextPass::kConfirmFollowed) kind.confirmation = Confirmation::kFollowed;\n  if (next == NextPass::kConfirmDisplaced)'),
 ('  if (done == NextPass::kConfirmDisplaced) return true;','  if (done >= NextPass::kConfirmFollowed) return true;'),
 ('  progress->next = NextPass::kConfirmDisplaced;','  progress->next = done == NextPass::kConfirm ? NextPass::kConfirmFollowed : NextPass::kConfirmDisplaced;'))
sub('kernels/backend/iteration.h',('  kDisplaced,  // every','  kFollowed,\n  kDisplaced,  // every'))
sub('kernels/solver/fixed_point_solver.cc',('Pass{NextPass::kConfirm, false},','Pass{NextPass::kConfirm, false}, Pass{NextPass::kConfirmFollowed, false},'),('constexpr std::array kPasses = {','constexpr Pass kPasses[] = {'))
sub('kernels/cpu/kernels_impl.h',('    Store(y + at, kept);\n','    Store(y + at, kept);\n    Store(y + kUpdateColumn * args.width + at, way);\n'))
sub('kernels/cpu/cpu_space.cc',('y[i] = TriedAt(confirmation, y[i], ball[i]);','y[i] = confirmation == Confirmation::kFollowed ? y[i] + kFollow() * y[kUpdateColumn * width_ + i] : TriedAt(confirmation, y[i], ball[i]);'),
 ('void Place(Confirmation','static float kFollow() { static const float f = std::getenv("FOLLOW") ? static_cast<float>(std::atof(std::getenv("FOLLOW"))) : 1.0F; return f; }\n  void Place(Confirmation'),('#include <algorithm>','#include <algorithm>\n#include <cstdlib>'))

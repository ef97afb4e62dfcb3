; made by runtime_ir.py from c0d803497f30e11a116eba37f178f879011b3dca0f9e14e1164c8e50894200f7

%struct.model = type { ptr, i64, i64, i64, ptr, ptr, i64, ptr, ptr, ptr }
%struct.answers = type { i32, [8 x %struct.answer] }
%struct.answer = type { i32, i32, [4 x i32] }
%struct.version = type { ptr, i64, ptr, i64, i64, ptr, ptr, i64, ptr, i64, i64, ptr, ptr }
%struct.probe = type { i64, i64, i64, i64, i64 }
%struct.part = type { ptr, ptr, ptr, ptr, i64, i64, i64, i64, i64, i64, ptr, ptr, i64, ptr, i64, ptr, ptr, ptr, ptr, i64 }
%struct.crew = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr, i64, i64 }
%struct.sr_instance = type { ptr, ptr, ptr, ptr, i32, [256 x i8] }
%struct.__sigset_t = type { [16 x i64] }
%struct.sanderling_options = type { i32, i32, ptr, i64, ptr, ptr, i64 }
%struct.run_of = type { ptr, ptr, ptr }
%struct.sanderling_buffer = type { ptr, i64 }
%struct.sanderling_tensor = type { ptr, i32, i32, ptr, i64, i64, i64, ptr, ptr, i64 }
%struct.step = type { ptr, ptr }
%struct.copy = type { %struct.place, %struct.place, i64 }
%struct.place = type { i64, i64, ptr }
%struct.sanderling_operand = type { ptr, ptr }
%struct.site = type { ptr, ptr }

@.str = private unnamed_addr constant [42 x i8] c"there is no place for the instance (NULL)\00", align 1
@.str.1 = private unnamed_addr constant [29 x i8] c"threads is %lld, not 1 to %d\00", align 1
@.str.2 = private unnamed_addr constant [53 x i8] c"an instance takes %zu bytes of memory, %zu are given\00", align 1
@.str.3 = private unnamed_addr constant [38 x i8] c"the system has no %zu bytes of memory\00", align 1
@.str.4 = private unnamed_addr constant [46 x i8] c"a thread cannot be started; use fewer threads\00", align 1
@.str.5 = private unnamed_addr constant [6 x i8] c"input\00", align 1
@.str.6 = private unnamed_addr constant [7 x i8] c"output\00", align 1
@.str.7 = private unnamed_addr constant [1 x i8] zeroinitializer, align 1
@.str.8 = private unnamed_addr constant [28 x i8] c"there is no instance (NULL)\00", align 1
@.str.9 = private unnamed_addr constant [13 x i8] c"it went well\00", align 1
@.str.10 = private unnamed_addr constant [69 x i8] c"an argument is wrong: NULL, a count, a size, or buffers that overlap\00", align 1
@.str.11 = private unnamed_addr constant [27 x i8] c"there is not enough memory\00", align 1
@.str.12 = private unnamed_addr constant [29 x i8] c"this CPU cannot run the code\00", align 1
@.str.13 = private unnamed_addr constant [27 x i8] c"a thread cannot be started\00", align 1
@.str.14 = private unnamed_addr constant [60 x i8] c"another thread runs this instance: give each thread its own\00", align 1
@.str.15 = private unnamed_addr constant [37 x i8] c"an index in an input is out of range\00", align 1
@.str.16 = private unnamed_addr constant [25 x i8] c"a custom operator failed\00", align 1
@.str.17 = private unnamed_addr constant [24 x i8] c"there is no such status\00", align 1
@.str.18 = private unnamed_addr constant [3 x i8] c"%s\00", align 1
@.str.19 = private unnamed_addr constant [44 x i8] c"%s: this CPU cannot run %s; the library has\00", align 1
@.str.20 = private unnamed_addr constant [24 x i8] c"any version of the code\00", align 1
@.str.21 = private unnamed_addr constant [4 x i8] c" %s\00", align 1
@.str.22 = private unnamed_addr constant [38 x i8] c"the model has %lld %ss, %zu are given\00", align 1
@.str.23 = private unnamed_addr constant [29 x i8] c"has %zu bytes, %zu are given\00", align 1
@.str.24 = private unnamed_addr constant [8 x i8] c"is NULL\00", align 1
@.str.25 = private unnamed_addr constant [51 x i8] c"does not begin at a multiple of its element's size\00", align 1
@.str.26 = private unnamed_addr constant [16 x i8] c"%s %lld '%s' %s\00", align 1
@.str.27 = private unnamed_addr constant [18 x i8] c"overlaps an input\00", align 1
@.str.28 = private unnamed_addr constant [24 x i8] c"overlaps another output\00", align 1
@.str.29 = private unnamed_addr constant [35 x i8] c"the custom operator %s returned %d\00", align 1
@.str.30 = private unnamed_addr constant [49 x i8] c"%s: %s is out of range: %lld is not in 0 to %lld\00", align 1
@reltable.sr_status_text = private unnamed_addr constant [8 x i32] [i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.9 to i64), i64 ptrtoint (ptr @reltable.sr_status_text to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.10 to i64), i64 ptrtoint (ptr @reltable.sr_status_text to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.11 to i64), i64 ptrtoint (ptr @reltable.sr_status_text to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.12 to i64), i64 ptrtoint (ptr @reltable.sr_status_text to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.13 to i64), i64 ptrtoint (ptr @reltable.sr_status_text to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.14 to i64), i64 ptrtoint (ptr @reltable.sr_status_text to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.15 to i64), i64 ptrtoint (ptr @reltable.sr_status_text to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.16 to i64), i64 ptrtoint (ptr @reltable.sr_status_text to i64)) to i32)], align 4

; Function Attrs: minsize nounwind optsize
define i64 @sr_memory_bytes(i32 noundef %0, ptr noundef %1) local_unnamed_addr #0 {
  %3 = alloca i64, align 8
  %4 = tail call fastcc ptr @pick(ptr noundef %1) #20
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #21
  %5 = icmp eq ptr %4, null
  %6 = icmp ugt i32 %0, 1024
  %7 = or i1 %6, %5
  br i1 %7, label %15, label %8

8:                                                ; preds = %2
  %9 = icmp eq i32 %0, 0
  %10 = zext i32 %0 to i64
  %11 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 1), align 8
  %12 = select i1 %9, i64 %11, i64 %10
  %13 = call fastcc i64 @lay_out(ptr noundef nonnull %4, i64 noundef %12, ptr noundef null, ptr noundef nonnull %3) #20
  %14 = add i64 %13, 63
  br label %15

15:                                               ; preds = %2, %8
  %16 = phi i64 [ %14, %8 ], [ 0, %2 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %3) #21
  ret i64 %16
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #1

; Function Attrs: minsize nounwind optsize
define internal fastcc ptr @pick(ptr noundef readonly %0) unnamed_addr #0 {
  %2 = alloca %struct.answers, align 4
  call void @llvm.lifetime.start.p0(i64 196, ptr nonnull %2) #21
  store i32 0, ptr %2, align 4
  %3 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 6), align 8
  %4 = icmp eq ptr %0, null
  %5 = load ptr, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 7), align 8
  %6 = load ptr, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 8), align 8
  %7 = icmp eq ptr %6, null
  %8 = load ptr, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 9), align 8
  %9 = tail call i64 @llvm.smax.i64(i64 %3, i64 0)
  br label %10

10:                                               ; preds = %76, %1
  %11 = phi i64 [ 0, %1 ], [ %77, %76 ]
  %12 = icmp eq i64 %11, %9
  br i1 %12, label %80, label %13

13:                                               ; preds = %10
  br i1 %4, label %19, label %14

14:                                               ; preds = %13
  %15 = getelementptr inbounds %struct.version, ptr %5, i64 %11
  %16 = load ptr, ptr %15, align 8
  %17 = call i32 @strcmp(ptr noundef nonnull dereferenceable(1) %0, ptr noundef nonnull dereferenceable(1) %16) #22
  %18 = icmp eq i32 %17, 0
  br i1 %18, label %19, label %76

19:                                               ; preds = %14, %13
  %20 = getelementptr inbounds %struct.version, ptr %5, i64 %11, i32 1
  %21 = getelementptr inbounds %struct.version, ptr %5, i64 %11, i32 2
  br label %22

22:                                               ; preds = %74, %19
  %23 = phi i64 [ 0, %19 ], [ %75, %74 ]
  %24 = load i64, ptr %20, align 8
  %25 = icmp slt i64 %23, %24
  br i1 %25, label %26, label %78

26:                                               ; preds = %22
  %27 = load ptr, ptr %21, align 8
  %28 = getelementptr inbounds %struct.probe, ptr %27, i64 %23
  %29 = load i64, ptr %28, align 8
  br i1 %7, label %67, label %30

30:                                               ; preds = %26
  %31 = trunc i64 %29 to i32
  %32 = and i32 %31, -2147483648
  %33 = call fastcc ptr @ask(ptr noundef nonnull %2, i32 noundef %32, i32 noundef 0) #20
  %34 = load i32, ptr %33, align 4
  %35 = icmp ult i32 %34, %31
  br i1 %35, label %76, label %36

36:                                               ; preds = %30
  %37 = getelementptr inbounds %struct.probe, ptr %27, i64 %23, i32 1
  %38 = load i64, ptr %37, align 8
  %39 = trunc i64 %38 to i32
  %40 = call fastcc ptr @ask(ptr noundef nonnull %2, i32 noundef %31, i32 noundef %39) #20
  %41 = getelementptr inbounds %struct.probe, ptr %27, i64 %23, i32 2
  %42 = load i64, ptr %41, align 8
  %43 = getelementptr inbounds i32, ptr %40, i64 %42
  %44 = load i32, ptr %43, align 4
  %45 = getelementptr inbounds %struct.probe, ptr %27, i64 %23, i32 3
  %46 = load i64, ptr %45, align 8
  %47 = trunc i64 %46 to i32
  %48 = shl nuw i32 1, %47
  %49 = and i32 %48, %44
  %50 = icmp eq i32 %49, 0
  br i1 %50, label %76, label %51

51:                                               ; preds = %36
  %52 = getelementptr inbounds %struct.probe, ptr %27, i64 %23, i32 4
  %53 = load i64, ptr %52, align 8
  %54 = icmp eq i64 %53, 0
  br i1 %54, label %74, label %55

55:                                               ; preds = %51
  %56 = call fastcc ptr @ask(ptr noundef nonnull %2, i32 noundef 1, i32 noundef 0) #20
  %57 = getelementptr inbounds i32, ptr %56, i64 2
  %58 = load i32, ptr %57, align 4
  %59 = and i32 %58, 134217728
  %60 = icmp eq i32 %59, 0
  br i1 %60, label %76, label %61

61:                                               ; preds = %55
  %62 = call i32 %8() #23
  %63 = zext i32 %62 to i64
  %64 = load i64, ptr %52, align 8
  %65 = and i64 %64, %63
  %66 = icmp eq i64 %65, %64
  br i1 %66, label %74, label %76

67:                                               ; preds = %26
  %68 = call i64 @getauxval(i64 noundef %29) #23
  %69 = getelementptr inbounds %struct.probe, ptr %27, i64 %23, i32 3
  %70 = load i64, ptr %69, align 8
  %71 = shl nuw i64 1, %70
  %72 = and i64 %71, %68
  %73 = icmp eq i64 %72, 0
  br i1 %73, label %76, label %74

74:                                               ; preds = %67, %61, %51
  %75 = add nuw nsw i64 %23, 1
  br label %22

76:                                               ; preds = %67, %61, %55, %36, %30, %14
  %77 = add nuw i64 %11, 1
  br label %10

78:                                               ; preds = %22
  %79 = getelementptr inbounds %struct.version, ptr %5, i64 %11
  br label %80

80:                                               ; preds = %10, %78
  %81 = phi ptr [ %79, %78 ], [ null, %10 ]
  call void @llvm.lifetime.end.p0(i64 196, ptr nonnull %2) #21
  ret ptr %81
}

; Function Attrs: minsize nofree nosync nounwind optsize memory(readwrite, inaccessiblemem: none)
define internal fastcc i64 @lay_out(ptr noundef %0, i64 noundef %1, ptr noundef %2, ptr nocapture noundef writeonly %3) unnamed_addr #2 {
  %5 = icmp eq ptr %2, null
  %6 = getelementptr inbounds %struct.version, ptr %0, i64 0, i32 7
  %7 = load i64, ptr %6, align 8
  %8 = mul i64 %7, 72
  %9 = getelementptr inbounds i8, ptr %2, i64 320
  %10 = select i1 %5, ptr null, ptr %9
  %11 = add i64 %8, 63
  %12 = and i64 %11, -64
  %13 = add i64 %12, 320
  %14 = getelementptr inbounds %struct.version, ptr %0, i64 0, i32 3
  %15 = load i64, ptr %14, align 8
  %16 = getelementptr inbounds i8, ptr %2, i64 %13
  %17 = add i64 %15, 63
  %18 = and i64 %17, -64
  %19 = add i64 %13, %18
  %20 = getelementptr inbounds %struct.version, ptr %0, i64 0, i32 8
  br label %21

21:                                               ; preds = %112, %4
  %22 = phi i64 [ %7, %4 ], [ %113, %112 ]
  %23 = phi i64 [ %19, %4 ], [ %99, %112 ]
  %24 = phi i64 [ 0, %4 ], [ %118, %112 ]
  %25 = phi i64 [ 0, %4 ], [ %117, %112 ]
  %26 = icmp slt i64 %24, %22
  br i1 %26, label %30, label %27

27:                                               ; preds = %21
  store i64 %23, ptr %3, align 8
  %28 = getelementptr inbounds i8, ptr %2, i64 %23
  %29 = select i1 %5, ptr null, ptr %28
  br i1 %5, label %159, label %119

30:                                               ; preds = %21
  %31 = load ptr, ptr %20, align 8
  %32 = getelementptr inbounds %struct.part, ptr %31, i64 %24, i32 7
  %33 = load i64, ptr %32, align 8
  %34 = tail call i64 @llvm.smin.i64(i64 %33, i64 %1)
  %35 = tail call i64 @llvm.smax.i64(i64 %34, i64 1)
  %36 = getelementptr inbounds %struct.part, ptr %31, i64 %24, i32 5
  %37 = load i64, ptr %36, align 8
  %38 = getelementptr inbounds %struct.part, ptr %31, i64 %24, i32 6
  %39 = load i64, ptr %38, align 8
  %40 = mul i64 %39, %35
  %41 = add i64 %40, %37
  %42 = getelementptr inbounds %struct.part, ptr %31, i64 %24, i32 8
  %43 = load i64, ptr %42, align 8
  %44 = shl i64 %43, 3
  %45 = getelementptr inbounds i8, ptr %2, i64 %23
  %46 = select i1 %5, ptr null, ptr %45
  %47 = add i64 %44, 143
  %48 = and i64 %47, -64
  %49 = add i64 %48, %23
  %50 = mul i64 %35, 192
  %51 = getelementptr inbounds i8, ptr %2, i64 %49
  %52 = select i1 %5, ptr null, ptr %51
  %53 = add i64 %50, 447
  %54 = and i64 %53, -64
  %55 = add i64 %49, %54
  %56 = getelementptr inbounds %struct.part, ptr %31, i64 %24, i32 14
  %57 = load i64, ptr %56, align 8
  %58 = shl i64 %57, 2
  %59 = getelementptr inbounds i8, ptr %2, i64 %55
  %60 = select i1 %5, ptr null, ptr %59
  %61 = add i64 %58, 67
  %62 = and i64 %61, -64
  %63 = add i64 %55, %62
  %64 = getelementptr inbounds %struct.part, ptr %31, i64 %24, i32 12
  %65 = load i64, ptr %64, align 8
  %66 = icmp eq i64 %65, 0
  %67 = shl i64 %35, 3
  %68 = mul i64 %67, %65
  %69 = getelementptr inbounds i8, ptr %2, i64 %63
  %70 = select i1 %5, ptr null, ptr %69
  %71 = add i64 %68, 71
  %72 = and i64 %71, -64
  %73 = select i1 %66, i64 0, i64 %72
  %74 = add i64 %63, %73
  %75 = add nsw i64 %35, -1
  %76 = mul i64 %75, 24
  %77 = getelementptr inbounds i8, ptr %2, i64 %74
  %78 = select i1 %5, ptr null, ptr %77
  %79 = add i64 %76, 63
  %80 = and i64 %79, -64
  %81 = add i64 %74, %80
  %82 = shl i64 %75, 3
  %83 = getelementptr inbounds i8, ptr %2, i64 %81
  %84 = select i1 %5, ptr null, ptr %83
  %85 = add i64 %82, 63
  %86 = and i64 %85, -64
  %87 = add i64 %81, %86
  %88 = getelementptr inbounds %struct.part, ptr %31, i64 %24, i32 16
  %89 = load ptr, ptr %88, align 8
  %90 = icmp eq ptr %89, null
  br i1 %90, label %98, label %91

91:                                               ; preds = %30
  %92 = shl i64 %43, 4
  %93 = getelementptr inbounds i8, ptr %2, i64 %87
  %94 = select i1 %5, ptr null, ptr %93
  %95 = add i64 %92, 63
  %96 = and i64 %95, -64
  %97 = add i64 %87, %96
  br label %98

98:                                               ; preds = %91, %30
  %99 = phi i64 [ %87, %30 ], [ %97, %91 ]
  %100 = phi ptr [ null, %30 ], [ %94, %91 ]
  br i1 %5, label %112, label %101

101:                                              ; preds = %98
  %102 = getelementptr inbounds %struct.crew, ptr %10, i64 %24
  store ptr %46, ptr %102, align 8
  %103 = getelementptr inbounds i8, ptr %102, i64 8
  store ptr %52, ptr %103, align 8
  %104 = getelementptr inbounds i8, ptr %102, i64 16
  store ptr %70, ptr %104, align 8
  %105 = getelementptr inbounds i8, ptr %102, i64 24
  store ptr %60, ptr %105, align 8
  %106 = getelementptr inbounds i8, ptr %102, i64 32
  store ptr %78, ptr %106, align 8
  %107 = getelementptr inbounds i8, ptr %102, i64 40
  store ptr %84, ptr %107, align 8
  %108 = getelementptr inbounds i8, ptr %102, i64 48
  store ptr %100, ptr %108, align 8
  %109 = getelementptr inbounds i8, ptr %102, i64 56
  store i64 %35, ptr %109, align 8
  %110 = getelementptr inbounds i8, ptr %102, i64 64
  store i64 0, ptr %110, align 8
  %111 = load i64, ptr %6, align 8
  br label %112

112:                                              ; preds = %101, %98
  %113 = phi i64 [ %111, %101 ], [ %22, %98 ]
  %114 = getelementptr inbounds %struct.part, ptr %31, i64 %24, i32 4
  %115 = load i64, ptr %114, align 8
  %116 = tail call i64 @llvm.umax.i64(i64 %41, i64 %115)
  %117 = tail call i64 @llvm.umax.i64(i64 %116, i64 %25)
  %118 = add nuw nsw i64 %24, 1
  br label %21

119:                                              ; preds = %27
  store ptr %0, ptr %2, align 8
  %120 = getelementptr inbounds %struct.sr_instance, ptr %2, i64 0, i32 1
  store ptr %10, ptr %120, align 8
  %121 = getelementptr inbounds %struct.sr_instance, ptr %2, i64 0, i32 2
  store ptr %16, ptr %121, align 8
  %122 = ptrtoint ptr %29 to i64
  br label %123

123:                                              ; preds = %127, %119
  %124 = phi i64 [ 0, %119 ], [ %158, %127 ]
  %125 = load i64, ptr %6, align 8
  %126 = icmp slt i64 %124, %125
  br i1 %126, label %127, label %159

127:                                              ; preds = %123
  %128 = getelementptr inbounds %struct.crew, ptr %10, i64 %124
  %129 = load ptr, ptr %128, align 8
  store i64 %122, ptr %129, align 8
  %130 = load ptr, ptr %20, align 8
  %131 = getelementptr inbounds %struct.part, ptr %130, i64 %124, i32 5
  %132 = load i64, ptr %131, align 8
  %133 = getelementptr inbounds i8, ptr %29, i64 %132
  %134 = ptrtoint ptr %133 to i64
  %135 = load ptr, ptr %128, align 8
  %136 = getelementptr inbounds i64, ptr %135, i64 2
  store i64 %134, ptr %136, align 8
  %137 = load ptr, ptr %20, align 8
  %138 = getelementptr inbounds %struct.part, ptr %137, i64 %124, i32 3
  %139 = load ptr, ptr %138, align 8
  %140 = ptrtoint ptr %139 to i64
  %141 = load ptr, ptr %128, align 8
  %142 = getelementptr inbounds i64, ptr %141, i64 1
  store i64 %140, ptr %142, align 8
  %143 = load ptr, ptr %20, align 8
  %144 = getelementptr inbounds %struct.part, ptr %143, i64 %124, i32 6
  %145 = load i64, ptr %144, align 8
  %146 = load ptr, ptr %128, align 8
  %147 = getelementptr inbounds i64, ptr %146, i64 3
  store i64 %145, ptr %147, align 8
  %148 = getelementptr inbounds %struct.crew, ptr %10, i64 %124, i32 1
  %149 = load ptr, ptr %148, align 8
  %150 = ptrtoint ptr %149 to i64
  %151 = load ptr, ptr %128, align 8
  %152 = getelementptr inbounds i64, ptr %151, i64 4
  store i64 %150, ptr %152, align 8
  %153 = getelementptr inbounds %struct.crew, ptr %10, i64 %124, i32 3
  %154 = load ptr, ptr %153, align 8
  %155 = ptrtoint ptr %154 to i64
  %156 = load ptr, ptr %128, align 8
  %157 = getelementptr inbounds i64, ptr %156, i64 9
  store i64 %155, ptr %157, align 8
  %158 = add nuw nsw i64 %124, 1
  br label %123

159:                                              ; preds = %123, %27
  %160 = add i64 %25, 127
  %161 = and i64 %160, -64
  %162 = add i64 %161, %23
  ret i64 %162
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #1

; Function Attrs: minsize nounwind optsize
define i32 @sr_create(ptr noundef %0, ptr noundef writeonly %1) local_unnamed_addr #0 {
  %3 = alloca %struct.__sigset_t, align 8
  %4 = alloca %struct.__sigset_t, align 8
  %5 = alloca [1024 x i8], align 1
  %6 = alloca [256 x i8], align 1
  %7 = alloca [256 x i8], align 1
  %8 = alloca i64, align 8
  call void @llvm.lifetime.start.p0(i64 256, ptr nonnull %7) #21
  %9 = icmp eq ptr %1, null
  br i1 %9, label %10, label %11

10:                                               ; preds = %2
  tail call fastcc void @refuse(ptr noundef %0, ptr noundef nonnull @.str) #20
  br label %271

11:                                               ; preds = %2
  store ptr null, ptr %1, align 8
  %12 = icmp eq ptr %0, null
  br i1 %12, label %16, label %13

13:                                               ; preds = %11
  %14 = load i32, ptr %0, align 8
  %15 = icmp eq i32 %14, 0
  br i1 %15, label %20, label %24

16:                                               ; preds = %11
  %17 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 1), align 8
  %18 = add i64 %17, -1025
  %19 = icmp ult i64 %18, -1024
  br i1 %19, label %28, label %35

20:                                               ; preds = %13
  %21 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 1), align 8
  %22 = add i64 %21, -1025
  %23 = icmp ult i64 %22, -1024
  br i1 %23, label %28, label %31

24:                                               ; preds = %13
  %25 = sext i32 %14 to i64
  %26 = add nsw i64 %25, -1025
  %27 = icmp ult i64 %26, -1024
  br i1 %27, label %28, label %31

28:                                               ; preds = %20, %24, %16
  %29 = phi i64 [ %25, %24 ], [ %17, %16 ], [ %21, %20 ]
  %30 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %7, i64 noundef 256, ptr noundef nonnull @.str.1, i64 noundef %29, i32 noundef 1024) #23
  call fastcc void @refuse(ptr noundef %0, ptr noundef nonnull %7) #20
  br label %271

31:                                               ; preds = %20, %24
  %32 = phi i64 [ %25, %24 ], [ %21, %20 ]
  %33 = getelementptr inbounds %struct.sanderling_options, ptr %0, i64 0, i32 4
  %34 = load ptr, ptr %33, align 8
  br label %35

35:                                               ; preds = %16, %31
  %36 = phi i64 [ %32, %31 ], [ %17, %16 ]
  %37 = phi ptr [ %34, %31 ], [ null, %16 ]
  %38 = tail call fastcc ptr @pick(ptr noundef %37) #20
  %39 = icmp eq ptr %38, null
  br i1 %39, label %40, label %70

40:                                               ; preds = %35
  call void @llvm.lifetime.start.p0(i64 256, ptr nonnull %6) #21
  %41 = load ptr, ptr @sr_model, align 8
  br i1 %12, label %47, label %42

42:                                               ; preds = %40
  %43 = getelementptr inbounds %struct.sanderling_options, ptr %0, i64 0, i32 4
  %44 = load ptr, ptr %43, align 8
  %45 = icmp eq ptr %44, null
  %46 = select i1 %45, ptr @.str.20, ptr %44
  br label %47

47:                                               ; preds = %42, %40
  %48 = phi ptr [ @.str.20, %40 ], [ %46, %42 ]
  %49 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %6, i64 noundef 256, ptr noundef nonnull @.str.19, ptr noundef %41, ptr noundef nonnull %48) #23
  %50 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 6), align 8
  %51 = load ptr, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 7), align 8
  br label %52

52:                                               ; preds = %60, %47
  %53 = phi i32 [ %49, %47 ], [ %67, %60 ]
  %54 = phi i64 [ 0, %47 ], [ %68, %60 ]
  %55 = icmp slt i64 %54, %50
  %56 = icmp sgt i32 %53, 0
  %57 = select i1 %55, i1 %56, i1 false
  %58 = icmp slt i32 %53, 256
  %59 = select i1 %57, i1 %58, i1 false
  br i1 %59, label %60, label %69

60:                                               ; preds = %52
  %61 = zext i32 %53 to i64
  %62 = getelementptr inbounds i8, ptr %6, i64 %61
  %63 = sub nuw nsw i64 256, %61
  %64 = getelementptr inbounds %struct.version, ptr %51, i64 %54
  %65 = load ptr, ptr %64, align 8
  %66 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull %62, i64 noundef %63, ptr noundef nonnull @.str.21, ptr noundef %65) #23
  %67 = add nsw i32 %66, %53
  %68 = add nuw nsw i64 %54, 1
  br label %52

69:                                               ; preds = %52
  call fastcc void @refuse(ptr noundef %0, ptr noundef nonnull %6) #20
  call void @llvm.lifetime.end.p0(i64 256, ptr nonnull %6) #21
  br label %271

70:                                               ; preds = %35
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %8) #21
  %71 = call fastcc i64 @lay_out(ptr noundef nonnull %38, i64 noundef %36, ptr noundef null, ptr noundef nonnull %8) #20
  br i1 %12, label %89, label %72

72:                                               ; preds = %70
  %73 = getelementptr inbounds %struct.sanderling_options, ptr %0, i64 0, i32 2
  %74 = load ptr, ptr %73, align 8
  %75 = icmp eq ptr %74, null
  br i1 %75, label %89, label %76

76:                                               ; preds = %72
  %77 = ptrtoint ptr %74 to i64
  %78 = sub i64 0, %77
  %79 = and i64 %78, 63
  %80 = getelementptr inbounds %struct.sanderling_options, ptr %0, i64 0, i32 3
  %81 = load i64, ptr %80, align 8
  %82 = add i64 %79, %71
  %83 = icmp ult i64 %81, %82
  br i1 %83, label %84, label %87

84:                                               ; preds = %76
  %85 = add i64 %71, 63
  %86 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %7, i64 noundef 256, ptr noundef nonnull @.str.2, i64 noundef %85, i64 noundef %81) #23
  call fastcc void @refuse(ptr noundef nonnull %0, ptr noundef nonnull %7) #20
  br label %269

87:                                               ; preds = %76
  %88 = getelementptr inbounds i8, ptr %74, i64 %79
  br label %100

89:                                               ; preds = %70, %72
  %90 = add i64 %71, 63
  %91 = tail call noalias ptr @calloc(i64 noundef 1, i64 noundef %90) #24
  %92 = icmp eq ptr %91, null
  br i1 %92, label %93, label %95

93:                                               ; preds = %89
  %94 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %7, i64 noundef 256, ptr noundef nonnull @.str.3, i64 noundef %90) #23
  call fastcc void @refuse(ptr noundef %0, ptr noundef nonnull %7) #20
  br label %269

95:                                               ; preds = %89
  %96 = ptrtoint ptr %91 to i64
  %97 = sub i64 0, %96
  %98 = and i64 %97, 63
  %99 = getelementptr inbounds i8, ptr %91, i64 %98
  br label %100

100:                                              ; preds = %87, %95
  %101 = phi ptr [ %88, %87 ], [ %99, %95 ]
  %102 = phi ptr [ null, %87 ], [ %91, %95 ]
  %103 = load i64, ptr %8, align 8
  tail call void @llvm.memset.p0.i64(ptr align 1 %101, i8 0, i64 %103, i1 false)
  %104 = call fastcc i64 @lay_out(ptr noundef nonnull %38, i64 noundef %36, ptr noundef %101, ptr noundef nonnull %8) #20
  %105 = getelementptr inbounds %struct.sr_instance, ptr %101, i64 0, i32 3
  store ptr %102, ptr %105, align 8
  br i1 %12, label %109, label %106

106:                                              ; preds = %100
  %107 = getelementptr inbounds %struct.sanderling_options, ptr %0, i64 0, i32 1
  %108 = load i32, ptr %107, align 4
  br label %109

109:                                              ; preds = %100, %106
  %110 = phi i32 [ %108, %106 ], [ 0, %100 ]
  call void @llvm.lifetime.start.p0(i64 1024, ptr nonnull %5) #21
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 1 dereferenceable(1024) %5, i8 0, i64 1024, i1 false)
  %111 = call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 1024, ptr noundef nonnull %5) #23
  %112 = icmp eq i32 %111, 0
  br i1 %112, label %113, label %136

113:                                              ; preds = %109, %129
  %114 = phi i32 [ %126, %129 ], [ 0, %109 ]
  %115 = phi i64 [ %130, %129 ], [ 0, %109 ]
  %116 = icmp eq i64 %115, 1024
  br i1 %116, label %121, label %117

117:                                              ; preds = %113
  %118 = getelementptr inbounds [1024 x i8], ptr %5, i64 0, i64 %115
  %119 = load i8, ptr %118, align 1
  %120 = zext i8 %119 to i32
  br label %125

121:                                              ; preds = %113
  %122 = icmp eq i32 %114, 0
  %123 = select i1 %122, i32 1, i32 %114
  %124 = sext i32 %123 to i64
  br label %136

125:                                              ; preds = %131, %117
  %126 = phi i32 [ %134, %131 ], [ %114, %117 ]
  %127 = phi i32 [ %135, %131 ], [ 0, %117 ]
  %128 = icmp eq i32 %127, 8
  br i1 %128, label %129, label %131

129:                                              ; preds = %125
  %130 = add nuw nsw i64 %115, 1
  br label %113

131:                                              ; preds = %125
  %132 = lshr i32 %120, %127
  %133 = and i32 %132, 1
  %134 = add nsw i32 %133, %126
  %135 = add nuw nsw i32 %127, 1
  br label %125

136:                                              ; preds = %121, %109
  %137 = phi i64 [ %124, %121 ], [ 1, %109 ]
  call void @llvm.lifetime.end.p0(i64 1024, ptr nonnull %5) #21
  %138 = getelementptr inbounds %struct.sr_instance, ptr %101, i64 0, i32 1
  %139 = icmp eq i32 %110, 0
  br label %140

140:                                              ; preds = %177, %136
  %141 = phi i64 [ 0, %136 ], [ %187, %177 ]
  %142 = load ptr, ptr %101, align 8
  %143 = getelementptr inbounds %struct.version, ptr %142, i64 0, i32 7
  %144 = load i64, ptr %143, align 8
  %145 = icmp slt i64 %141, %144
  br i1 %145, label %146, label %213

146:                                              ; preds = %140
  %147 = load ptr, ptr %138, align 8
  %148 = getelementptr inbounds %struct.crew, ptr %147, i64 %141
  %149 = getelementptr inbounds %struct.crew, ptr %147, i64 %141, i32 7
  %150 = load i64, ptr %149, align 8
  %151 = icmp sgt i64 %150, %137
  br i1 %151, label %152, label %153

152:                                              ; preds = %146
  store i64 %137, ptr %149, align 8
  br label %153

153:                                              ; preds = %152, %146
  br i1 %139, label %167, label %154

154:                                              ; preds = %153
  %155 = load ptr, ptr %101, align 8
  %156 = getelementptr inbounds %struct.version, ptr %155, i64 0, i32 8
  %157 = load ptr, ptr %156, align 8
  %158 = getelementptr inbounds %struct.part, ptr %157, i64 %141, i32 12
  %159 = load i64, ptr %158, align 8
  %160 = icmp eq i64 %159, 0
  br i1 %160, label %167, label %161

161:                                              ; preds = %154
  %162 = getelementptr inbounds %struct.crew, ptr %147, i64 %141, i32 2
  %163 = load ptr, ptr %162, align 8
  %164 = ptrtoint ptr %163 to i64
  %165 = load ptr, ptr %148, align 8
  %166 = getelementptr inbounds i64, ptr %165, i64 5
  store i64 %164, ptr %166, align 8
  br label %167

167:                                              ; preds = %161, %154, %153
  %168 = getelementptr inbounds %struct.crew, ptr %147, i64 %141, i32 3
  br label %169

169:                                              ; preds = %208, %167
  %170 = phi i64 [ 0, %167 ], [ %212, %208 ]
  %171 = load ptr, ptr %101, align 8
  %172 = getelementptr inbounds %struct.version, ptr %171, i64 0, i32 8
  %173 = load ptr, ptr %172, align 8
  %174 = getelementptr inbounds %struct.part, ptr %173, i64 %141, i32 14
  %175 = load i64, ptr %174, align 8
  %176 = icmp slt i64 %170, %175
  br i1 %176, label %188, label %177

177:                                              ; preds = %169
  %178 = load i64, ptr %149, align 8
  %179 = trunc i64 %178 to i32
  %180 = getelementptr inbounds %struct.crew, ptr %147, i64 %141, i32 1
  %181 = load ptr, ptr %180, align 8
  %182 = getelementptr inbounds i32, ptr %181, i64 34
  store i32 %179, ptr %182, align 4
  %183 = load ptr, ptr %180, align 8
  %184 = getelementptr inbounds i32, ptr %183, i64 33
  store i32 4000, ptr %184, align 4
  %185 = load ptr, ptr %180, align 8
  %186 = getelementptr inbounds i32, ptr %185, i64 36
  store i64 ptrtoint (ptr @syscall to i64), ptr %186, align 4
  %187 = add nuw nsw i64 %141, 1
  br label %140

188:                                              ; preds = %169
  %189 = getelementptr inbounds %struct.part, ptr %173, i64 %141, i32 15
  %190 = load ptr, ptr %189, align 8
  %191 = getelementptr inbounds i32, ptr %190, i64 %170
  %192 = load i32, ptr %191, align 4
  %193 = load i64, ptr %149, align 8
  %194 = srem i32 %192, 65536
  %195 = icmp slt i32 %194, 2
  %196 = icmp slt i64 %193, 2
  %197 = or i1 %195, %196
  br i1 %197, label %208, label %198

198:                                              ; preds = %188
  %199 = zext i32 %194 to i64
  %200 = udiv i64 %199, %193
  %201 = call i64 @llvm.smin.i64(i64 %200, i64 4)
  %202 = icmp eq i64 %201, 0
  %203 = mul nsw i64 %201, %193
  %204 = select i1 %202, i64 %199, i64 %203
  %205 = trunc i64 %204 to i32
  %206 = and i32 %192, 65536
  %207 = or i32 %206, %205
  br label %208

208:                                              ; preds = %198, %188
  %209 = phi i32 [ %207, %198 ], [ 0, %188 ]
  %210 = load ptr, ptr %168, align 8
  %211 = getelementptr inbounds i32, ptr %210, i64 %170
  store i32 %209, ptr %211, align 4
  %212 = add nuw nsw i64 %170, 1
  br label %169

213:                                              ; preds = %140
  call fastcc void @fill_state(ptr noundef nonnull %101) #20
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %3) #21
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %4) #21
  %214 = call i32 @sigfillset(ptr noundef nonnull %3) #23
  %215 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %3, ptr noundef nonnull %4) #23
  br label %216

216:                                              ; preds = %239, %213
  %217 = phi i64 [ 0, %213 ], [ %240, %239 ]
  %218 = phi i32 [ 0, %213 ], [ %234, %239 ]
  %219 = load ptr, ptr %101, align 8
  %220 = getelementptr inbounds %struct.version, ptr %219, i64 0, i32 7
  %221 = load i64, ptr %220, align 8
  %222 = icmp slt i64 %217, %221
  %223 = icmp eq i32 %218, 0
  %224 = select i1 %222, i1 %223, i1 false
  br i1 %224, label %225, label %265

225:                                              ; preds = %216
  %226 = load ptr, ptr %138, align 8
  %227 = getelementptr inbounds %struct.crew, ptr %226, i64 %217
  %228 = getelementptr inbounds %struct.crew, ptr %226, i64 %217, i32 7
  %229 = getelementptr inbounds %struct.crew, ptr %226, i64 %217, i32 4
  %230 = getelementptr inbounds %struct.crew, ptr %226, i64 %217, i32 5
  %231 = getelementptr inbounds %struct.crew, ptr %226, i64 %217, i32 8
  br label %232

232:                                              ; preds = %263, %225
  %233 = phi i64 [ 1, %225 ], [ %264, %263 ]
  %234 = phi i32 [ 0, %225 ], [ %258, %263 ]
  %235 = load i64, ptr %228, align 8
  %236 = icmp slt i64 %233, %235
  %237 = icmp eq i32 %234, 0
  %238 = select i1 %236, i1 %237, i1 false
  br i1 %238, label %241, label %239

239:                                              ; preds = %232
  %240 = add nuw nsw i64 %217, 1
  br label %216

241:                                              ; preds = %232
  %242 = load ptr, ptr %229, align 8
  %243 = add nsw i64 %233, -1
  %244 = getelementptr inbounds [3 x i64], ptr %242, i64 %243
  store i64 %233, ptr %244, align 8
  %245 = load i64, ptr %228, align 8
  %246 = getelementptr inbounds i64, ptr %244, i64 1
  store i64 %245, ptr %246, align 8
  %247 = load ptr, ptr %227, align 8
  %248 = ptrtoint ptr %247 to i64
  %249 = getelementptr inbounds i64, ptr %244, i64 2
  store i64 %248, ptr %249, align 8
  %250 = load ptr, ptr %230, align 8
  %251 = getelementptr i64, ptr %250, i64 -1
  %252 = getelementptr i64, ptr %251, i64 %233
  %253 = load ptr, ptr %101, align 8
  %254 = getelementptr inbounds %struct.version, ptr %253, i64 0, i32 8
  %255 = load ptr, ptr %254, align 8
  %256 = getelementptr inbounds %struct.part, ptr %255, i64 %217, i32 1
  %257 = load ptr, ptr %256, align 8
  %258 = call i32 @pthread_create(ptr noundef nonnull %252, ptr noundef null, ptr noundef %257, ptr noundef nonnull %244) #23
  %259 = icmp eq i32 %258, 0
  br i1 %259, label %260, label %263

260:                                              ; preds = %241
  %261 = load i64, ptr %231, align 8
  %262 = add nsw i64 %261, 1
  store i64 %262, ptr %231, align 8
  br label %263

263:                                              ; preds = %260, %241
  %264 = add nuw nsw i64 %233, 1
  br label %232

265:                                              ; preds = %216
  %266 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %4, ptr noundef null) #23
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %4) #21
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %3) #21
  br i1 %223, label %268, label %267

267:                                              ; preds = %265
  call fastcc void @dismiss(ptr noundef nonnull %101) #20
  call void @free(ptr noundef %102) #23
  call fastcc void @refuse(ptr noundef %0, ptr noundef nonnull @.str.4) #20
  br label %269

268:                                              ; preds = %265
  store ptr %101, ptr %1, align 8
  br label %269

269:                                              ; preds = %84, %267, %268, %93
  %270 = phi i32 [ 2, %93 ], [ 4, %267 ], [ 0, %268 ], [ 2, %84 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %8) #21
  br label %271

271:                                              ; preds = %28, %269, %69, %10
  %272 = phi i32 [ 1, %10 ], [ 1, %28 ], [ %270, %269 ], [ 3, %69 ]
  call void @llvm.lifetime.end.p0(i64 256, ptr nonnull %7) #21
  ret i32 %272
}

; Function Attrs: minsize nofree nounwind optsize
define internal fastcc void @refuse(ptr noundef readonly %0, ptr noundef %1) unnamed_addr #3 {
  %3 = icmp eq ptr %0, null
  br i1 %3, label %14, label %4

4:                                                ; preds = %2
  %5 = getelementptr inbounds %struct.sanderling_options, ptr %0, i64 0, i32 5
  %6 = load ptr, ptr %5, align 8
  %7 = getelementptr inbounds %struct.sanderling_options, ptr %0, i64 0, i32 6
  %8 = load i64, ptr %7, align 8
  %9 = icmp ne ptr %6, null
  %10 = icmp ne i64 %8, 0
  %11 = and i1 %9, %10
  br i1 %11, label %12, label %14

12:                                               ; preds = %4
  %13 = tail call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull %6, i64 noundef %8, ptr noundef nonnull @.str.18, ptr noundef %1) #23
  br label %14

14:                                               ; preds = %12, %4, %2
  ret void
}

; Function Attrs: minsize nofree nounwind optsize
declare noundef i32 @snprintf(ptr noalias nocapture noundef writeonly, i64 noundef, ptr nocapture noundef readonly, ...) local_unnamed_addr #3

; Function Attrs: minsize mustprogress nofree nounwind optsize willreturn allockind("alloc,zeroed") allocsize(0,1) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @calloc(i64 noundef, i64 noundef) local_unnamed_addr #4

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: write)
declare void @llvm.memset.p0.i64(ptr nocapture writeonly, i8, i64, i1 immarg) #5

; Function Attrs: minsize mustprogress nofree nosync nounwind optsize willreturn memory(readwrite, inaccessiblemem: none)
define internal fastcc void @fill_state(ptr nocapture noundef readonly %0) unnamed_addr #6 {
  %2 = load ptr, ptr %0, align 8
  %3 = getelementptr inbounds %struct.version, ptr %2, i64 0, i32 4
  %4 = load i64, ptr %3, align 8
  %5 = getelementptr inbounds %struct.version, ptr %2, i64 0, i32 5
  %6 = load ptr, ptr %5, align 8
  %7 = icmp eq ptr %6, null
  %8 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 2
  %9 = load ptr, ptr %8, align 8
  br i1 %7, label %11, label %10

10:                                               ; preds = %1
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %9, ptr nonnull align 1 %6, i64 %4, i1 false)
  br label %12

11:                                               ; preds = %1
  tail call void @llvm.memset.p0.i64(ptr align 1 %9, i8 0, i64 %4, i1 false)
  br label %12

12:                                               ; preds = %11, %10
  ret void
}

; Function Attrs: minsize nounwind optsize
define internal fastcc void @dismiss(ptr nocapture noundef readonly %0) unnamed_addr #0 {
  %2 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 1
  br label %3

3:                                                ; preds = %28, %1
  %4 = phi i64 [ 0, %1 ], [ %29, %28 ]
  %5 = load ptr, ptr %0, align 8
  %6 = getelementptr inbounds %struct.version, ptr %5, i64 0, i32 7
  %7 = load i64, ptr %6, align 8
  %8 = icmp slt i64 %4, %7
  br i1 %8, label %10, label %9

9:                                                ; preds = %3
  ret void

10:                                               ; preds = %3
  %11 = load ptr, ptr %2, align 8
  %12 = getelementptr inbounds %struct.crew, ptr %11, i64 %4, i32 8
  %13 = load i64, ptr %12, align 8
  %14 = icmp eq i64 %13, 0
  br i1 %14, label %22, label %15

15:                                               ; preds = %10
  %16 = getelementptr inbounds %struct.crew, ptr %11, i64 %4
  %17 = getelementptr inbounds %struct.version, ptr %5, i64 0, i32 8
  %18 = load ptr, ptr %17, align 8
  %19 = getelementptr inbounds %struct.part, ptr %18, i64 %4, i32 2
  %20 = load ptr, ptr %19, align 8
  %21 = load ptr, ptr %16, align 8
  tail call void %20(ptr noundef %21) #23
  br label %22

22:                                               ; preds = %15, %10
  %23 = getelementptr inbounds %struct.crew, ptr %11, i64 %4, i32 5
  br label %24

24:                                               ; preds = %30, %22
  %25 = phi i64 [ 0, %22 ], [ %35, %30 ]
  %26 = load i64, ptr %12, align 8
  %27 = icmp slt i64 %25, %26
  br i1 %27, label %30, label %28

28:                                               ; preds = %24
  store i64 0, ptr %12, align 8
  %29 = add nuw nsw i64 %4, 1
  br label %3

30:                                               ; preds = %24
  %31 = load ptr, ptr %23, align 8
  %32 = getelementptr inbounds i64, ptr %31, i64 %25
  %33 = load i64, ptr %32, align 8
  %34 = tail call i32 @pthread_join(i64 noundef %33, ptr noundef null) #23
  %35 = add nuw nsw i64 %25, 1
  br label %24
}

; Function Attrs: minsize mustprogress nounwind optsize willreturn allockind("free") memory(argmem: readwrite, inaccessiblemem: readwrite)
declare void @free(ptr allocptr nocapture noundef) local_unnamed_addr #7

; Function Attrs: minsize nounwind optsize
define void @sr_destroy(ptr noundef readonly %0) local_unnamed_addr #0 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %6, label %3

3:                                                ; preds = %1
  tail call fastcc void @dismiss(ptr noundef nonnull %0) #20
  %4 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 3
  %5 = load ptr, ptr %4, align 8
  tail call void @free(ptr noundef %5) #23
  br label %6

6:                                                ; preds = %1, %3
  ret void
}

; Function Attrs: minsize nounwind optsize
define i32 @sr_run(ptr noundef %0, ptr noundef %1, i64 noundef %2, ptr noundef %3, i64 noundef %4) local_unnamed_addr #0 {
  %6 = alloca %struct.run_of, align 8
  %7 = icmp eq ptr %0, null
  br i1 %7, label %94, label %8

8:                                                ; preds = %5
  %9 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 4
  %10 = atomicrmw xchg ptr %9, i32 1 acquire, align 4
  %11 = icmp eq i32 %10, 0
  br i1 %11, label %12, label %94

12:                                               ; preds = %8
  %13 = load ptr, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 4), align 8
  %14 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 2), align 8
  %15 = tail call fastcc i32 @check(ptr noundef nonnull %0, ptr noundef nonnull @.str.5, ptr noundef %13, i64 noundef %14, ptr noundef %1, i64 noundef %2) #20
  %16 = icmp eq i32 %15, 0
  br i1 %16, label %17, label %92

17:                                               ; preds = %12
  %18 = load ptr, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 5), align 8
  %19 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 3), align 8
  %20 = tail call fastcc i32 @check(ptr noundef nonnull %0, ptr noundef nonnull @.str.6, ptr noundef %18, i64 noundef %19, ptr noundef %3, i64 noundef %4) #20
  %21 = icmp eq i32 %20, 0
  br i1 %21, label %22, label %92

22:                                               ; preds = %17
  %23 = tail call i64 @llvm.smax.i64(i64 %14, i64 0)
  %24 = tail call i64 @llvm.smax.i64(i64 %19, i64 0)
  br label %25

25:                                               ; preds = %50, %22
  %26 = phi i64 [ 0, %22 ], [ %51, %50 ]
  %27 = icmp eq i64 %26, %24
  br i1 %27, label %54, label %28

28:                                               ; preds = %25
  %29 = getelementptr inbounds %struct.sanderling_buffer, ptr %3, i64 %26
  br label %30

30:                                               ; preds = %33, %28
  %31 = phi i64 [ %37, %33 ], [ 0, %28 ]
  %32 = icmp eq i64 %31, %23
  br i1 %32, label %40, label %33

33:                                               ; preds = %30
  %34 = getelementptr inbounds %struct.sanderling_buffer, ptr %1, i64 %31
  %35 = tail call fastcc i32 @overlap(ptr noundef %29, ptr noundef %34) #20
  %36 = icmp eq i32 %35, 0
  %37 = add nuw i64 %31, 1
  br i1 %36, label %30, label %38

38:                                               ; preds = %33
  %39 = getelementptr inbounds %struct.sanderling_tensor, ptr %18, i64 %26
  tail call fastcc void @complain(ptr noundef nonnull %0, ptr noundef nonnull @.str.6, i64 noundef %26, ptr noundef %39, ptr noundef nonnull @.str.27) #20
  br label %52

40:                                               ; preds = %30, %43
  %41 = phi i64 [ %47, %43 ], [ 0, %30 ]
  %42 = icmp eq i64 %41, %26
  br i1 %42, label %50, label %43

43:                                               ; preds = %40
  %44 = getelementptr inbounds %struct.sanderling_buffer, ptr %3, i64 %41
  %45 = tail call fastcc i32 @overlap(ptr noundef nonnull %29, ptr noundef %44) #20
  %46 = icmp eq i32 %45, 0
  %47 = add nuw i64 %41, 1
  br i1 %46, label %40, label %48

48:                                               ; preds = %43
  %49 = getelementptr inbounds %struct.sanderling_tensor, ptr %18, i64 %26
  tail call fastcc void @complain(ptr noundef nonnull %0, ptr noundef nonnull @.str.6, i64 noundef %26, ptr noundef nonnull %49, ptr noundef nonnull @.str.28) #20
  br label %52

50:                                               ; preds = %40
  %51 = add nuw i64 %26, 1
  br label %25

52:                                               ; preds = %48, %38
  %53 = icmp slt i64 %26, %19
  br i1 %53, label %92, label %54

54:                                               ; preds = %25, %52
  call void @llvm.lifetime.start.p0(i64 24, ptr nonnull %6) #21
  store ptr %0, ptr %6, align 8
  %55 = getelementptr inbounds %struct.run_of, ptr %6, i64 0, i32 1
  store ptr %1, ptr %55, align 8
  %56 = getelementptr inbounds %struct.run_of, ptr %6, i64 0, i32 2
  store ptr %3, ptr %56, align 8
  %57 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 5
  store i8 0, ptr %57, align 4
  %58 = load ptr, ptr %0, align 8
  %59 = getelementptr inbounds %struct.version, ptr %58, i64 0, i32 11
  %60 = load ptr, ptr %59, align 8
  %61 = getelementptr inbounds %struct.version, ptr %58, i64 0, i32 9
  %62 = load i64, ptr %61, align 8
  call fastcc void @copy_all(ptr noundef nonnull %6, ptr noundef %60, i64 noundef %62) #20
  %63 = getelementptr inbounds %struct.version, ptr %58, i64 0, i32 7
  %64 = getelementptr inbounds %struct.version, ptr %58, i64 0, i32 8
  br label %65

65:                                               ; preds = %73, %54
  %66 = phi i64 [ 0, %54 ], [ %85, %73 ]
  %67 = phi i32 [ 0, %54 ], [ %84, %73 ]
  %68 = load i64, ptr %63, align 8
  %69 = icmp slt i64 %66, %68
  %70 = icmp eq i32 %67, 0
  %71 = select i1 %69, i1 %70, i1 false
  br i1 %71, label %73, label %72

72:                                               ; preds = %65
  br i1 %70, label %86, label %91

73:                                               ; preds = %65
  %74 = load ptr, ptr %64, align 8
  %75 = getelementptr inbounds %struct.part, ptr %74, i64 %66
  %76 = getelementptr inbounds %struct.part, ptr %74, i64 %66, i32 16
  %77 = load ptr, ptr %76, align 8
  %78 = icmp eq ptr %77, null
  %79 = select i1 %78, ptr @run_code, ptr @run_function
  %80 = load ptr, ptr %6, align 8
  %81 = getelementptr inbounds %struct.sr_instance, ptr %80, i64 0, i32 1
  %82 = load ptr, ptr %81, align 8
  %83 = getelementptr inbounds %struct.crew, ptr %82, i64 %66
  %84 = call i32 %79(ptr noundef nonnull %6, ptr noundef %75, ptr noundef %83) #23
  %85 = add nuw nsw i64 %66, 1
  br label %65

86:                                               ; preds = %72
  %87 = getelementptr inbounds %struct.version, ptr %58, i64 0, i32 12
  %88 = load ptr, ptr %87, align 8
  %89 = getelementptr inbounds %struct.version, ptr %58, i64 0, i32 10
  %90 = load i64, ptr %89, align 8
  call fastcc void @copy_all(ptr noundef nonnull %6, ptr noundef %88, i64 noundef %90) #20
  br label %91

91:                                               ; preds = %72, %86
  call void @llvm.lifetime.end.p0(i64 24, ptr nonnull %6) #21
  br label %92

92:                                               ; preds = %12, %17, %91, %52
  %93 = phi i32 [ 1, %52 ], [ %67, %91 ], [ %20, %17 ], [ %15, %12 ]
  store atomic i32 0, ptr %9 release, align 8
  br label %94

94:                                               ; preds = %8, %5, %92
  %95 = phi i32 [ %93, %92 ], [ 1, %5 ], [ 5, %8 ]
  ret i32 %95
}

; Function Attrs: minsize nofree nounwind optsize
define internal fastcc i32 @check(ptr nocapture noundef writeonly %0, ptr noundef %1, ptr nocapture noundef readonly %2, i64 noundef %3, ptr noundef readonly %4, i64 noundef %5) unnamed_addr #3 {
  %7 = alloca [128 x i8], align 1
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %7) #21
  %8 = icmp eq i64 %5, %3
  br i1 %8, label %9, label %15

9:                                                ; preds = %6
  %10 = icmp eq i64 %5, 0
  %11 = icmp ne ptr %4, null
  %12 = or i1 %10, %11
  br i1 %12, label %13, label %15

13:                                               ; preds = %9
  %14 = tail call i64 @llvm.smax.i64(i64 %5, i64 0)
  br label %20

15:                                               ; preds = %9, %6
  %16 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 5
  %17 = icmp eq ptr %4, null
  %18 = select i1 %17, i64 0, i64 %5
  %19 = tail call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %16, i64 noundef 256, ptr noundef nonnull @.str.22, i64 noundef %3, ptr noundef %1, i64 noundef %18) #23
  br label %53

20:                                               ; preds = %13, %48
  %21 = phi i64 [ %49, %48 ], [ 0, %13 ]
  %22 = icmp eq i64 %21, %14
  br i1 %22, label %50, label %23

23:                                               ; preds = %20
  %24 = getelementptr inbounds %struct.sanderling_buffer, ptr %4, i64 %21, i32 1
  %25 = load i64, ptr %24, align 8
  %26 = getelementptr inbounds %struct.sanderling_tensor, ptr %2, i64 %21, i32 4
  %27 = load i64, ptr %26, align 8
  %28 = icmp eq i64 %25, %27
  br i1 %28, label %32, label %29

29:                                               ; preds = %23
  %30 = getelementptr inbounds %struct.sanderling_tensor, ptr %2, i64 %21
  %31 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %7, i64 noundef 128, ptr noundef nonnull @.str.23, i64 noundef %27, i64 noundef %25) #23
  call fastcc void @complain(ptr noundef %0, ptr noundef %1, i64 noundef %21, ptr noundef nonnull %30, ptr noundef nonnull %7) #20
  br label %50

32:                                               ; preds = %23
  %33 = getelementptr inbounds %struct.sanderling_buffer, ptr %4, i64 %21
  %34 = load ptr, ptr %33, align 8
  %35 = icmp ne ptr %34, null
  %36 = icmp eq i64 %25, 0
  %37 = select i1 %35, i1 true, i1 %36
  br i1 %37, label %40, label %38

38:                                               ; preds = %32
  %39 = getelementptr inbounds %struct.sanderling_tensor, ptr %2, i64 %21
  tail call fastcc void @complain(ptr noundef %0, ptr noundef %1, i64 noundef %21, ptr noundef nonnull %39, ptr noundef nonnull @.str.24) #20
  br label %50

40:                                               ; preds = %32
  %41 = ptrtoint ptr %34 to i64
  %42 = getelementptr inbounds %struct.sanderling_tensor, ptr %2, i64 %21, i32 5
  %43 = load i64, ptr %42, align 8
  %44 = urem i64 %41, %43
  %45 = icmp eq i64 %44, 0
  br i1 %45, label %48, label %46

46:                                               ; preds = %40
  %47 = getelementptr inbounds %struct.sanderling_tensor, ptr %2, i64 %21
  tail call fastcc void @complain(ptr noundef %0, ptr noundef %1, i64 noundef %21, ptr noundef nonnull %47, ptr noundef nonnull @.str.25) #20
  br label %50

48:                                               ; preds = %40
  %49 = add nuw i64 %21, 1
  br label %20

50:                                               ; preds = %20, %46, %38, %29
  %51 = icmp slt i64 %21, %5
  %52 = zext i1 %51 to i32
  br label %53

53:                                               ; preds = %50, %15
  %54 = phi i32 [ 1, %15 ], [ %52, %50 ]
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %7) #21
  ret i32 %54
}

; Function Attrs: minsize mustprogress nofree nounwind optsize willreturn memory(readwrite, inaccessiblemem: none)
define i32 @sr_reset(ptr noundef %0) local_unnamed_addr #8 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %8, label %3

3:                                                ; preds = %1
  %4 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 4
  %5 = atomicrmw xchg ptr %4, i32 1 acquire, align 4
  %6 = icmp eq i32 %5, 0
  br i1 %6, label %7, label %8

7:                                                ; preds = %3
  tail call fastcc void @fill_state(ptr noundef nonnull %0) #20
  store atomic i32 0, ptr %4 release, align 8
  br label %8

8:                                                ; preds = %3, %1, %7
  %9 = phi i32 [ 0, %7 ], [ 1, %1 ], [ 5, %3 ]
  ret i32 %9
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none)
define i64 @sr_input_count() local_unnamed_addr #9 {
  %1 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 2), align 8
  ret i64 %1
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none)
define i64 @sr_output_count() local_unnamed_addr #9 {
  %1 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 3), align 8
  ret i64 %1
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none)
define ptr @sr_input(i64 noundef %0) local_unnamed_addr #9 {
  %2 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 2), align 8
  %3 = icmp ugt i64 %2, %0
  %4 = load ptr, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 4), align 8
  %5 = getelementptr inbounds %struct.sanderling_tensor, ptr %4, i64 %0
  %6 = select i1 %3, ptr %5, ptr null
  ret ptr %6
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none)
define ptr @sr_output(i64 noundef %0) local_unnamed_addr #9 {
  %2 = load i64, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 3), align 8
  %3 = icmp ugt i64 %2, %0
  %4 = load ptr, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 5), align 8
  %5 = getelementptr inbounds %struct.sanderling_tensor, ptr %4, i64 %0
  %6 = select i1 %3, ptr %5, ptr null
  ret ptr %6
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none)
define ptr @sr_version(ptr noundef readonly %0) local_unnamed_addr #10 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %6, label %3

3:                                                ; preds = %1
  %4 = load ptr, ptr %0, align 8
  %5 = load ptr, ptr %4, align 8
  br label %6

6:                                                ; preds = %1, %3
  %7 = phi ptr [ %5, %3 ], [ @.str.7, %1 ]
  ret ptr %7
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none)
define nonnull ptr @sr_message(ptr noundef readnone %0) local_unnamed_addr #9 {
  %2 = icmp eq ptr %0, null
  %3 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 5
  %4 = select i1 %2, ptr @.str.8, ptr %3
  ret ptr %4
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none)
define nonnull ptr @sr_status_text(i32 noundef %0) local_unnamed_addr #9 {
  %2 = icmp ult i32 %0, 8
  br i1 %2, label %3, label %7

3:                                                ; preds = %1
  %4 = sext i32 %0 to i64
  %5 = shl i64 %4, 2
  %6 = call ptr @llvm.load.relative.i64(ptr @reltable.sr_status_text, i64 %5)
  br label %7

7:                                                ; preds = %1, %3
  %8 = phi ptr [ %6, %3 ], [ @.str.17, %1 ]
  ret ptr %8
}

; Function Attrs: minsize nofree norecurse nosync nounwind optsize memory(read, inaccessiblemem: none)
define i64 @sr_step_count(ptr noundef readonly %0) local_unnamed_addr #11 {
  %2 = icmp eq ptr %0, null
  br label %3

3:                                                ; preds = %13, %1
  %4 = phi i64 [ 0, %1 ], [ %18, %13 ]
  %5 = phi i64 [ 0, %1 ], [ %19, %13 ]
  br i1 %2, label %11, label %6

6:                                                ; preds = %3
  %7 = load ptr, ptr %0, align 8
  %8 = getelementptr inbounds %struct.version, ptr %7, i64 0, i32 7
  %9 = load i64, ptr %8, align 8
  %10 = icmp slt i64 %5, %9
  br i1 %10, label %13, label %11

11:                                               ; preds = %3, %6
  %12 = phi i64 [ 0, %3 ], [ %4, %6 ]
  ret i64 %12

13:                                               ; preds = %6
  %14 = getelementptr inbounds %struct.version, ptr %7, i64 0, i32 8
  %15 = load ptr, ptr %14, align 8
  %16 = getelementptr inbounds %struct.part, ptr %15, i64 %5, i32 12
  %17 = load i64, ptr %16, align 8
  %18 = add i64 %17, %4
  %19 = add nuw nsw i64 %5, 1
  br label %3
}

; Function Attrs: minsize nofree nosync nounwind optsize memory(read, argmem: readwrite, inaccessiblemem: none)
define ptr @sr_step_type(ptr noundef %0, i64 noundef %1) local_unnamed_addr #12 {
  %3 = alloca i64, align 8
  %4 = alloca ptr, align 8
  store i64 %1, ptr %3, align 8
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #21
  %5 = call fastcc ptr @part_of(ptr noundef %0, ptr noundef nonnull %3, ptr noundef nonnull %4) #20
  %6 = icmp eq ptr %5, null
  br i1 %6, label %13, label %7

7:                                                ; preds = %2
  %8 = getelementptr inbounds %struct.part, ptr %5, i64 0, i32 13
  %9 = load ptr, ptr %8, align 8
  %10 = load i64, ptr %3, align 8
  %11 = getelementptr inbounds %struct.step, ptr %9, i64 %10
  %12 = load ptr, ptr %11, align 8
  br label %13

13:                                               ; preds = %2, %7
  %14 = phi ptr [ %12, %7 ], [ @.str.7, %2 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4) #21
  ret ptr %14
}

; Function Attrs: minsize nofree norecurse nosync nounwind optsize memory(read, argmem: readwrite, inaccessiblemem: none)
define internal fastcc ptr @part_of(ptr noundef readonly %0, ptr nocapture noundef %1, ptr nocapture noundef writeonly %2) unnamed_addr #13 {
  %4 = icmp eq ptr %0, null
  br i1 %4, label %26, label %5

5:                                                ; preds = %3, %23
  %6 = phi i64 [ %25, %23 ], [ 0, %3 ]
  %7 = load ptr, ptr %0, align 8
  %8 = getelementptr inbounds %struct.version, ptr %7, i64 0, i32 7
  %9 = load i64, ptr %8, align 8
  %10 = icmp slt i64 %6, %9
  br i1 %10, label %11, label %26

11:                                               ; preds = %5
  %12 = getelementptr inbounds %struct.version, ptr %7, i64 0, i32 8
  %13 = load ptr, ptr %12, align 8
  %14 = load i64, ptr %1, align 8
  %15 = getelementptr inbounds %struct.part, ptr %13, i64 %6, i32 12
  %16 = load i64, ptr %15, align 8
  %17 = icmp ult i64 %14, %16
  br i1 %17, label %18, label %23

18:                                               ; preds = %11
  %19 = getelementptr inbounds %struct.part, ptr %13, i64 %6
  %20 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 1
  %21 = load ptr, ptr %20, align 8
  %22 = getelementptr inbounds %struct.crew, ptr %21, i64 %6
  store ptr %22, ptr %2, align 8
  br label %26

23:                                               ; preds = %11
  %24 = sub i64 %14, %16
  store i64 %24, ptr %1, align 8
  %25 = add nuw nsw i64 %6, 1
  br label %5

26:                                               ; preds = %5, %3, %18
  %27 = phi ptr [ %19, %18 ], [ null, %3 ], [ null, %5 ]
  ret ptr %27
}

; Function Attrs: minsize nofree nosync nounwind optsize memory(read, argmem: readwrite, inaccessiblemem: none)
define ptr @sr_step_name(ptr noundef %0, i64 noundef %1) local_unnamed_addr #12 {
  %3 = alloca i64, align 8
  %4 = alloca ptr, align 8
  store i64 %1, ptr %3, align 8
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #21
  %5 = call fastcc ptr @part_of(ptr noundef %0, ptr noundef nonnull %3, ptr noundef nonnull %4) #20
  %6 = icmp eq ptr %5, null
  br i1 %6, label %13, label %7

7:                                                ; preds = %2
  %8 = getelementptr inbounds %struct.part, ptr %5, i64 0, i32 13
  %9 = load ptr, ptr %8, align 8
  %10 = load i64, ptr %3, align 8
  %11 = getelementptr inbounds %struct.step, ptr %9, i64 %10, i32 1
  %12 = load ptr, ptr %11, align 8
  br label %13

13:                                               ; preds = %2, %7
  %14 = phi ptr [ %12, %7 ], [ @.str.7, %2 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4) #21
  ret ptr %14
}

; Function Attrs: minsize nofree nosync nounwind optsize memory(read, argmem: readwrite, inaccessiblemem: none)
define i64 @sr_step_ticks(ptr noundef %0, i64 noundef %1) local_unnamed_addr #12 {
  %3 = alloca i64, align 8
  %4 = alloca ptr, align 8
  store i64 %1, ptr %3, align 8
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #21
  %5 = call fastcc ptr @part_of(ptr noundef %0, ptr noundef nonnull %3, ptr noundef nonnull %4) #20
  %6 = icmp eq ptr %5, null
  %7 = load ptr, ptr %4, align 8
  %8 = getelementptr inbounds %struct.crew, ptr %7, i64 0, i32 7
  %9 = getelementptr inbounds %struct.crew, ptr %7, i64 0, i32 2
  %10 = getelementptr inbounds %struct.part, ptr %5, i64 0, i32 12
  %11 = load i64, ptr %3, align 8
  br label %12

12:                                               ; preds = %20, %2
  %13 = phi i64 [ 0, %2 ], [ %28, %20 ]
  %14 = phi i64 [ 0, %2 ], [ %27, %20 ]
  br i1 %6, label %18, label %15

15:                                               ; preds = %12
  %16 = load i64, ptr %8, align 8
  %17 = icmp slt i64 %13, %16
  br i1 %17, label %20, label %18

18:                                               ; preds = %12, %15
  %19 = phi i64 [ 0, %12 ], [ %14, %15 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4) #21
  ret i64 %19

20:                                               ; preds = %15
  %21 = load ptr, ptr %9, align 8
  %22 = load i64, ptr %10, align 8
  %23 = mul nsw i64 %22, %13
  %24 = add nsw i64 %23, %11
  %25 = getelementptr inbounds i64, ptr %21, i64 %24
  %26 = load i64, ptr %25, align 8
  %27 = tail call i64 @llvm.smax.i64(i64 %26, i64 %14)
  %28 = add nuw nsw i64 %13, 1
  br label %12
}

; Function Attrs: minsize nofree norecurse nosync nounwind optsize memory(read, inaccessiblemem: none)
define i64 @sr_run_ticks(ptr noundef readonly %0) local_unnamed_addr #11 {
  %2 = icmp eq ptr %0, null
  %3 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 1
  br label %4

4:                                                ; preds = %30, %1
  %5 = phi i64 [ 0, %1 ], [ %32, %30 ]
  %6 = phi i64 [ 0, %1 ], [ %31, %30 ]
  br i1 %2, label %12, label %7

7:                                                ; preds = %4
  %8 = load ptr, ptr %0, align 8
  %9 = getelementptr inbounds %struct.version, ptr %8, i64 0, i32 7
  %10 = load i64, ptr %9, align 8
  %11 = icmp slt i64 %5, %10
  br i1 %11, label %14, label %12

12:                                               ; preds = %4, %7
  %13 = phi i64 [ 0, %4 ], [ %6, %7 ]
  ret i64 %13

14:                                               ; preds = %7
  %15 = getelementptr inbounds %struct.version, ptr %8, i64 0, i32 8
  %16 = load ptr, ptr %15, align 8
  %17 = getelementptr inbounds %struct.part, ptr %16, i64 %5, i32 12
  %18 = load i64, ptr %17, align 8
  %19 = icmp eq i64 %18, 0
  br i1 %19, label %30, label %20

20:                                               ; preds = %14
  %21 = load ptr, ptr %3, align 8
  %22 = getelementptr inbounds %struct.crew, ptr %21, i64 %5, i32 2
  %23 = load ptr, ptr %22, align 8
  %24 = getelementptr inbounds %struct.crew, ptr %21, i64 %5, i32 7
  %25 = load i64, ptr %24, align 8
  %26 = mul nsw i64 %25, %18
  %27 = getelementptr inbounds i64, ptr %23, i64 %26
  %28 = load i64, ptr %27, align 8
  %29 = add nsw i64 %28, %6
  br label %30

30:                                               ; preds = %20, %14
  %31 = phi i64 [ %29, %20 ], [ %6, %14 ]
  %32 = add nuw nsw i64 %5, 1
  br label %4
}

; Function Attrs: minsize nofree nosync nounwind optsize memory(readwrite, inaccessiblemem: none)
define void @sr_clear_ticks(ptr noundef readonly %0) local_unnamed_addr #2 {
  %2 = icmp eq ptr %0, null
  %3 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 1
  br i1 %2, label %10, label %4

4:                                                ; preds = %1, %11
  %5 = phi i64 [ %26, %11 ], [ 0, %1 ]
  %6 = load ptr, ptr %0, align 8
  %7 = getelementptr inbounds %struct.version, ptr %6, i64 0, i32 7
  %8 = load i64, ptr %7, align 8
  %9 = icmp slt i64 %5, %8
  br i1 %9, label %11, label %10

10:                                               ; preds = %4, %1
  ret void

11:                                               ; preds = %4
  %12 = getelementptr inbounds %struct.version, ptr %6, i64 0, i32 8
  %13 = load ptr, ptr %12, align 8
  %14 = load ptr, ptr %3, align 8
  %15 = getelementptr inbounds %struct.crew, ptr %14, i64 %5, i32 2
  %16 = load ptr, ptr %15, align 8
  %17 = getelementptr inbounds %struct.crew, ptr %14, i64 %5, i32 7
  %18 = load i64, ptr %17, align 8
  %19 = getelementptr inbounds %struct.part, ptr %13, i64 %5, i32 12
  %20 = load i64, ptr %19, align 8
  %21 = icmp eq i64 %20, 0
  %22 = shl i64 %18, 3
  %23 = mul i64 %22, %20
  %24 = add i64 %23, 8
  %25 = select i1 %21, i64 0, i64 %24
  tail call void @llvm.memset.p0.i64(ptr align 8 %16, i8 0, i64 %25, i1 false)
  %26 = add nuw nsw i64 %5, 1
  br label %4
}

; Function Attrs: minsize mustprogress nofree nounwind optsize willreturn memory(argmem: read)
declare i32 @strcmp(ptr nocapture noundef, ptr nocapture noundef) local_unnamed_addr #14

; Function Attrs: minsize nounwind optsize
declare i64 @getauxval(i64 noundef) local_unnamed_addr #0

; Function Attrs: minsize nounwind optsize
define internal fastcc ptr @ask(ptr noundef %0, i32 noundef %1, i32 noundef %2) unnamed_addr #0 {
  %4 = load i32, ptr %0, align 4
  %5 = tail call i32 @llvm.smax.i32(i32 %4, i32 0)
  %6 = zext i32 %5 to i64
  br label %7

7:                                                ; preds = %18, %3
  %8 = phi i64 [ %19, %18 ], [ 0, %3 ]
  %9 = icmp eq i64 %8, %6
  br i1 %9, label %23, label %10

10:                                               ; preds = %7
  %11 = getelementptr inbounds %struct.answers, ptr %0, i64 0, i32 1, i64 %8
  %12 = load i32, ptr %11, align 4
  %13 = icmp eq i32 %12, %1
  br i1 %13, label %14, label %18

14:                                               ; preds = %10
  %15 = getelementptr inbounds %struct.answers, ptr %0, i64 0, i32 1, i64 %8, i32 1
  %16 = load i32, ptr %15, align 4
  %17 = icmp eq i32 %16, %2
  br i1 %17, label %20, label %18

18:                                               ; preds = %10, %14
  %19 = add nuw nsw i64 %8, 1
  br label %7

20:                                               ; preds = %14
  %21 = and i64 %8, 4294967295
  %22 = getelementptr inbounds %struct.answers, ptr %0, i64 0, i32 1, i64 %21, i32 2
  br label %35

23:                                               ; preds = %7
  %24 = getelementptr inbounds %struct.answers, ptr %0, i64 0, i32 1
  %25 = icmp slt i32 %4, 8
  br i1 %25, label %26, label %29

26:                                               ; preds = %23
  %27 = add nsw i32 %4, 1
  store i32 %27, ptr %0, align 4
  %28 = sext i32 %4 to i64
  br label %29

29:                                               ; preds = %23, %26
  %30 = phi i64 [ %28, %26 ], [ 7, %23 ]
  %31 = getelementptr inbounds %struct.answer, ptr %24, i64 %30
  store i32 %1, ptr %31, align 4
  %32 = getelementptr inbounds %struct.answer, ptr %24, i64 %30, i32 1
  store i32 %2, ptr %32, align 4
  %33 = load ptr, ptr getelementptr inbounds (%struct.model, ptr @sr_model, i64 0, i32 8), align 8
  %34 = getelementptr inbounds %struct.answer, ptr %24, i64 %30, i32 2
  tail call void %33(i32 noundef %1, i32 noundef %2, ptr noundef nonnull %34) #23
  br label %35

35:                                               ; preds = %20, %29
  %36 = phi ptr [ %22, %20 ], [ %34, %29 ]
  ret ptr %36
}

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite)
declare void @llvm.memcpy.p0.p0.i64(ptr noalias nocapture writeonly, ptr noalias nocapture readonly, i64, i1 immarg) #15

; Function Attrs: minsize nounwind optsize
declare i64 @syscall(i64 noundef, ...) #0

; Function Attrs: minsize nounwind optsize
declare i32 @sched_getaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #0

; Function Attrs: minsize nounwind optsize
declare i32 @sigfillset(ptr noundef) local_unnamed_addr #0

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_sigmask(i32 noundef, ptr noundef, ptr noundef) local_unnamed_addr #0

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_create(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #0

; Function Attrs: minsize optsize
declare i32 @pthread_join(i64 noundef, ptr noundef) local_unnamed_addr #16

; Function Attrs: minsize nofree nounwind optsize
define internal fastcc void @complain(ptr nocapture noundef writeonly %0, ptr noundef %1, i64 noundef %2, ptr nocapture noundef readonly %3, ptr noundef %4) unnamed_addr #3 {
  %6 = getelementptr inbounds %struct.sr_instance, ptr %0, i64 0, i32 5
  %7 = load ptr, ptr %3, align 8
  %8 = tail call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %6, i64 noundef 256, ptr noundef nonnull @.str.26, ptr noundef %1, i64 noundef %2, ptr noundef %7, ptr noundef %4) #23
  ret void
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(argmem: read)
define internal fastcc i32 @overlap(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1) unnamed_addr #17 {
  %3 = load ptr, ptr %0, align 8
  %4 = ptrtoint ptr %3 to i64
  %5 = load ptr, ptr %1, align 8
  %6 = ptrtoint ptr %5 to i64
  %7 = getelementptr inbounds %struct.sanderling_buffer, ptr %0, i64 0, i32 1
  %8 = load i64, ptr %7, align 8
  %9 = icmp eq i64 %8, 0
  br i1 %9, label %21, label %10

10:                                               ; preds = %2
  %11 = getelementptr inbounds %struct.sanderling_buffer, ptr %1, i64 0, i32 1
  %12 = load i64, ptr %11, align 8
  %13 = icmp ne i64 %12, 0
  %14 = add i64 %12, %6
  %15 = icmp ugt i64 %14, %4
  %16 = select i1 %13, i1 %15, i1 false
  br i1 %16, label %17, label %21

17:                                               ; preds = %10
  %18 = add i64 %8, %4
  %19 = icmp ugt i64 %18, %6
  %20 = zext i1 %19 to i32
  br label %21

21:                                               ; preds = %17, %10, %2
  %22 = phi i32 [ 0, %10 ], [ 0, %2 ], [ %20, %17 ]
  ret i32 %22
}

; Function Attrs: minsize nofree nosync nounwind optsize memory(readwrite, inaccessiblemem: none)
define internal fastcc void @copy_all(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, i64 noundef %2) unnamed_addr #2 {
  %4 = tail call i64 @llvm.smax.i64(i64 %2, i64 0)
  br label %5

5:                                                ; preds = %9, %3
  %6 = phi i64 [ 0, %3 ], [ %16, %9 ]
  %7 = icmp eq i64 %6, %4
  br i1 %7, label %8, label %9

8:                                                ; preds = %5
  ret void

9:                                                ; preds = %5
  %10 = getelementptr inbounds %struct.copy, ptr %1, i64 %6
  %11 = tail call fastcc ptr @address(ptr noundef %0, ptr noundef %10) #20
  %12 = getelementptr inbounds %struct.copy, ptr %1, i64 %6, i32 1
  %13 = tail call fastcc ptr @address(ptr noundef %0, ptr noundef nonnull %12) #20
  %14 = getelementptr inbounds %struct.copy, ptr %1, i64 %6, i32 2
  %15 = load i64, ptr %14, align 8
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %11, ptr align 1 %13, i64 %15, i1 false)
  %16 = add nuw i64 %6, 1
  br label %5
}

; Function Attrs: minsize nounwind optsize
define internal i32 @run_function(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2) unnamed_addr #0 {
  %4 = getelementptr inbounds %struct.part, ptr %1, i64 0, i32 8
  %5 = getelementptr inbounds %struct.part, ptr %1, i64 0, i32 10
  %6 = getelementptr inbounds %struct.crew, ptr %2, i64 0, i32 6
  br label %7

7:                                                ; preds = %25, %3
  %8 = phi i64 [ 0, %3 ], [ %35, %25 ]
  %9 = load i64, ptr %4, align 8
  %10 = icmp slt i64 %8, %9
  %11 = load ptr, ptr %6, align 8
  br i1 %10, label %25, label %12

12:                                               ; preds = %7
  %13 = getelementptr inbounds %struct.part, ptr %1, i64 0, i32 16
  %14 = load ptr, ptr %13, align 8
  %15 = getelementptr inbounds %struct.part, ptr %1, i64 0, i32 9
  %16 = load i64, ptr %15, align 8
  %17 = getelementptr inbounds %struct.sanderling_operand, ptr %11, i64 %16
  %18 = sub nsw i64 %9, %16
  %19 = getelementptr inbounds %struct.part, ptr %1, i64 0, i32 18
  %20 = load ptr, ptr %19, align 8
  %21 = getelementptr inbounds %struct.part, ptr %1, i64 0, i32 19
  %22 = load i64, ptr %21, align 8
  %23 = tail call i32 %14(ptr noundef %11, i64 noundef %16, ptr noundef %17, i64 noundef %18, ptr noundef %20, i64 noundef %22) #23
  %24 = icmp eq i32 %23, 0
  br i1 %24, label %42, label %36

25:                                               ; preds = %7
  %26 = load ptr, ptr %5, align 8
  %27 = getelementptr inbounds %struct.place, ptr %26, i64 %8
  %28 = tail call fastcc ptr @address(ptr noundef %0, ptr noundef %27) #20
  %29 = getelementptr inbounds %struct.sanderling_operand, ptr %11, i64 %8
  store ptr %28, ptr %29, align 8
  %30 = load ptr, ptr %5, align 8
  %31 = getelementptr inbounds %struct.place, ptr %30, i64 %8, i32 2
  %32 = load ptr, ptr %31, align 8
  %33 = load ptr, ptr %6, align 8
  %34 = getelementptr inbounds %struct.sanderling_operand, ptr %33, i64 %8, i32 1
  store ptr %32, ptr %34, align 8
  %35 = add nuw nsw i64 %8, 1
  br label %7

36:                                               ; preds = %12
  %37 = load ptr, ptr %0, align 8
  %38 = getelementptr inbounds %struct.sr_instance, ptr %37, i64 0, i32 5
  %39 = getelementptr inbounds %struct.part, ptr %1, i64 0, i32 17
  %40 = load ptr, ptr %39, align 8
  %41 = tail call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %38, i64 noundef 256, ptr noundef nonnull @.str.29, ptr noundef %40, i32 noundef %23) #23
  br label %42

42:                                               ; preds = %12, %36
  %43 = phi i32 [ 7, %36 ], [ 0, %12 ]
  ret i32 %43
}

; Function Attrs: minsize nounwind optsize
define internal i32 @run_code(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2) unnamed_addr #0 {
  %4 = getelementptr inbounds %struct.part, ptr %1, i64 0, i32 8
  %5 = getelementptr inbounds %struct.part, ptr %1, i64 0, i32 10
  br label %6

6:                                                ; preds = %17, %3
  %7 = phi i64 [ 0, %3 ], [ %25, %17 ]
  %8 = load i64, ptr %4, align 8
  %9 = icmp slt i64 %7, %8
  br i1 %9, label %17, label %10

10:                                               ; preds = %6
  %11 = load ptr, ptr %1, align 8
  %12 = getelementptr inbounds %struct.crew, ptr %2, i64 0, i32 7
  %13 = load i64, ptr %12, align 8
  %14 = load ptr, ptr %2, align 8
  %15 = tail call i64 %11(i64 noundef %13, ptr noundef %14) #23
  %16 = icmp eq i64 %15, 0
  br i1 %16, label %45, label %26

17:                                               ; preds = %6
  %18 = load ptr, ptr %5, align 8
  %19 = getelementptr inbounds %struct.place, ptr %18, i64 %7
  %20 = tail call fastcc ptr @address(ptr noundef %0, ptr noundef %19) #20
  %21 = ptrtoint ptr %20 to i64
  %22 = load ptr, ptr %2, align 8
  %23 = add nuw nsw i64 %7, 10
  %24 = getelementptr inbounds i64, ptr %22, i64 %23
  store i64 %21, ptr %24, align 8
  %25 = add nuw nsw i64 %7, 1
  br label %6

26:                                               ; preds = %10
  %27 = getelementptr inbounds %struct.part, ptr %1, i64 0, i32 11
  %28 = load ptr, ptr %27, align 8
  %29 = add nsw i64 %15, -1
  %30 = getelementptr inbounds %struct.site, ptr %28, i64 %29
  %31 = load ptr, ptr %0, align 8
  %32 = getelementptr inbounds %struct.sr_instance, ptr %31, i64 0, i32 5
  %33 = getelementptr inbounds %struct.site, ptr %28, i64 %29, i32 1
  %34 = load ptr, ptr %33, align 8
  %35 = load ptr, ptr %30, align 8
  %36 = load ptr, ptr %2, align 8
  %37 = getelementptr inbounds i64, ptr %36, i64 7
  %38 = load i64, ptr %37, align 8
  %39 = getelementptr inbounds i64, ptr %36, i64 8
  %40 = load i64, ptr %39, align 8
  %41 = add nsw i64 %40, -1
  %42 = tail call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %32, i64 noundef 256, ptr noundef nonnull @.str.30, ptr noundef %34, ptr noundef %35, i64 noundef %38, i64 noundef %41) #23
  %43 = load ptr, ptr %2, align 8
  %44 = getelementptr inbounds i64, ptr %43, i64 6
  store i64 0, ptr %44, align 8
  br label %45

45:                                               ; preds = %10, %26
  %46 = phi i32 [ 6, %26 ], [ 0, %10 ]
  ret i32 %46
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none)
define internal fastcc ptr @address(ptr nocapture noundef readonly %0, ptr nocapture noundef readonly %1) unnamed_addr #10 {
  %3 = load i64, ptr %1, align 8
  switch i64 %3, label %33 [
    i64 1, label %4
    i64 2, label %11
    i64 3, label %18
    i64 4, label %25
  ]

4:                                                ; preds = %2
  %5 = getelementptr inbounds %struct.run_of, ptr %0, i64 0, i32 1
  %6 = load ptr, ptr %5, align 8
  %7 = getelementptr inbounds %struct.place, ptr %1, i64 0, i32 1
  %8 = load i64, ptr %7, align 8
  %9 = getelementptr inbounds %struct.sanderling_buffer, ptr %6, i64 %8
  %10 = load ptr, ptr %9, align 8
  br label %33

11:                                               ; preds = %2
  %12 = getelementptr inbounds %struct.run_of, ptr %0, i64 0, i32 2
  %13 = load ptr, ptr %12, align 8
  %14 = getelementptr inbounds %struct.place, ptr %1, i64 0, i32 1
  %15 = load i64, ptr %14, align 8
  %16 = getelementptr inbounds %struct.sanderling_buffer, ptr %13, i64 %15
  %17 = load ptr, ptr %16, align 8
  br label %33

18:                                               ; preds = %2
  %19 = load ptr, ptr %0, align 8
  %20 = getelementptr inbounds %struct.sr_instance, ptr %19, i64 0, i32 2
  %21 = load ptr, ptr %20, align 8
  %22 = getelementptr inbounds %struct.place, ptr %1, i64 0, i32 1
  %23 = load i64, ptr %22, align 8
  %24 = getelementptr inbounds i8, ptr %21, i64 %23
  br label %33

25:                                               ; preds = %2
  %26 = load ptr, ptr %0, align 8
  %27 = load ptr, ptr %26, align 8
  %28 = getelementptr inbounds %struct.version, ptr %27, i64 0, i32 6
  %29 = load ptr, ptr %28, align 8
  %30 = getelementptr inbounds %struct.place, ptr %1, i64 0, i32 1
  %31 = load i64, ptr %30, align 8
  %32 = getelementptr inbounds i8, ptr %29, i64 %31
  br label %33

33:                                               ; preds = %2, %25, %18, %11, %4
  %34 = phi ptr [ %32, %25 ], [ %24, %18 ], [ %17, %11 ], [ %10, %4 ], [ null, %2 ]
  ret ptr %34
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smax.i64(i64, i64) #18

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smin.i64(i64, i64) #18

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smax.i32(i32, i32) #18

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.umax.i64(i64, i64) #18

; Function Attrs: nocallback nofree nosync nounwind willreturn memory(argmem: read)
declare ptr @llvm.load.relative.i64(ptr, i64) #19

attributes #0 = { minsize nounwind optsize }
attributes #1 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #2 = { minsize nofree nosync nounwind optsize memory(readwrite, inaccessiblemem: none) }
attributes #3 = { minsize nofree nounwind optsize }
attributes #4 = { minsize mustprogress nofree nounwind optsize willreturn allockind("alloc,zeroed") allocsize(0,1) memory(inaccessiblemem: readwrite) }
attributes #5 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: write) }
attributes #6 = { minsize mustprogress nofree nosync nounwind optsize willreturn memory(readwrite, inaccessiblemem: none) }
attributes #7 = { minsize mustprogress nounwind optsize willreturn allockind("free") memory(argmem: readwrite, inaccessiblemem: readwrite) }
attributes #8 = { minsize mustprogress nofree nounwind optsize willreturn memory(readwrite, inaccessiblemem: none) }
attributes #9 = { minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) }
attributes #10 = { minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) }
attributes #11 = { minsize nofree norecurse nosync nounwind optsize memory(read, inaccessiblemem: none) }
attributes #12 = { minsize nofree nosync nounwind optsize memory(read, argmem: readwrite, inaccessiblemem: none) }
attributes #13 = { minsize nofree norecurse nosync nounwind optsize memory(read, argmem: readwrite, inaccessiblemem: none) }
attributes #14 = { minsize mustprogress nofree nounwind optsize willreturn memory(argmem: read) }
attributes #15 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite) }
attributes #16 = { minsize optsize }
attributes #17 = { minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(argmem: read) }
attributes #18 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #19 = { nocallback nofree nosync nounwind willreturn memory(argmem: read) }
attributes #20 = { minsize optsize }
attributes #21 = { nounwind }
attributes #22 = { minsize nounwind optsize willreturn memory(read) }
attributes #23 = { minsize nounwind optsize }
attributes #24 = { minsize nounwind optsize allocsize(0,1) }


